"""Every law of persist holds in every history, and the histories are worth something."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from planted.known import telling
from strandline.testing.simulation.kernel import STEPS_MAX as KERNEL_STEPS_MAX
from worlds.campaign import POSSIBLE, RUNS, SEED, Campaign, mixed, seeds, wage
from worlds.cast import populate
from worlds.persist import STEPS_MAX, play

HISTORIES = 500
"""Those that are the same each time; as many new ones come with them."""
LONG_BASE = 1_000_000
LONG_HISTORIES = 150_000
SAYS_SOMETHING = 2_000
"""From how many histories on their averages mean something."""

ACKNOWLEDGED_AVERAGE_MIN = 8
IO_POINTS_AVERAGE_MIN = 100
PER_CPU_MINUTE_MIN = 7_500
PER_MINUTE_MIN = 15_000
DISTINCT_SHARE_MIN = 0.99

MARKS = (
    "append: Appended",
    "append: UpperMismatch",
    "append: Fenced",
    "append: unknown",
    "append: unavailable",
    "record: Appended",
    "record: UpperMismatch",
    "record: Fenced",
    "record: found",
    "commit: done",
    "commit: found",
    "commit: time taken",
    "commit: unknown",
    "commit: too late",
    "commit: too old",
    "open: not all applied",
    "word: unknown",
    "fenced",
    "hold: fenced",
    "listened",
    "read: not yet, or no more",
    "read: unanswered",
    "read: gone",
    "lease: lost",
    "compact: Merged",
    "compact: Stale",
    "merged beside",
    "collect: some",
    "swept",
    "swept: tables",
    "shared",
    "damage refused",
)
"""What callers meet: each must come up, or the laws were not tried where it matters."""


def figures(campaign: Campaign, name: str, least: int, minutes: float) -> list[str]:
    """Return the figures of a campaign, each with its goal and whether it is met.

    Speeds are shown beside their goals and never judged: a machine's other work takes its share of processor time.
    """
    n = campaign.histories
    acknowledged, points = campaign.acknowledged / n, campaign.io_points / n
    rate, distinct = n / max(campaign.cpu_seconds, 1e-9) * 60, len(campaign.traces)
    marks = sum(campaign.marks[mark] > 0 for mark in MARKS)
    rows = (
        ("histories", f"{n}", f">={least}", n >= least),
        (
            "acknowledged-per-history",
            f"{acknowledged:.1f}",
            f">={ACKNOWLEDGED_AVERAGE_MIN}",
            acknowledged >= ACKNOWLEDGED_AVERAGE_MIN,
        ),
        ("io-points-per-history", f"{points:.0f}", f">={IO_POINTS_AVERAGE_MIN}", points >= IO_POINTS_AVERAGE_MIN),
        ("reads-per-history", f"{campaign.reads / n:.0f}", ">=10", campaign.reads >= 10 * n),
        ("distinct-traces", f"{distinct}", f">={DISTINCT_SHARE_MIN:.0%}", distinct >= DISTINCT_SHARE_MIN * n),
        ("fates-by-site", f"{len(campaign.reached)}/{len(POSSIBLE)}", "all", campaign.reached.keys() == POSSIBLE),
        ("marks", f"{marks}/{len(MARKS)}", "all", marks == len(MARKS)),
        ("steps-max", f"{campaign.steps_max}", f"<{STEPS_MAX}", campaign.steps_max < STEPS_MAX),
    )
    speeds = (
        f"{name}.histories-per-cpu-minute {rate:.0f} >={PER_CPU_MINUTE_MIN} info",
        f"{name}.histories-per-minute {n / minutes:.0f} >={PER_MINUTE_MIN} info",
    )
    return [*(f"{name}.{what} {value} {goal} {'pass' if met else 'miss'}" for what, value, goal, met in rows), *speeds]


def hold(record_property, name: str, these: Sequence[int]) -> None:
    """Make a campaign, record its figures, and insist on their goals."""
    begun = time.monotonic()
    campaign = wage(these, populate)
    minutes = (time.monotonic() - begun) / 60
    assert campaign.histories == len(these)
    if campaign.histories < SAYS_SOMETHING:
        return  # asked for by hand: the laws are what counts
    shown = figures(campaign, name, len(these), minutes)
    shown.append(f"{name}.newest-seed {these[-1]} - info")
    for figure in shown:
        record_property("FIGURE", figure)
    assert [figure for figure in shown if figure.endswith(" miss")] == [], sorted(
        f"{site} {fate.name}" for site, fate in POSSIBLE - campaign.reached.keys()
    ) + [mark for mark in MARKS if not campaign.marks[mark]]


def test_every_law_holds_in_every_history(record_property) -> None:
    """Damage: a crash, a retry or a race loses, repeats or tears what was acknowledged."""
    hold(record_property, "simulation.persist", mixed("persist", HISTORIES))


@pytest.mark.slow
def test_every_law_holds_in_many_more_histories(record_property) -> None:
    """Damage: the same, where it takes more luck to find."""
    hold(record_property, "long.persist", seeds(LONG_BASE, LONG_HISTORIES))


HASHES = """
import sys
sys.path.insert(0, sys.argv[1])
from worlds.persist import play
from worlds.cast import populate
print(" ".join(play(seed, populate).simulation.trace_hash() for seed in range(int(sys.argv[2]))))
"""


def test_a_seed_is_one_history_in_any_process_under_any_hash_seed(record_property) -> None:
    """Damage: a failing seed cannot be replayed, so the bug it found stays."""
    count = 128
    here = [play(seed, populate).simulation.trace_hash() for seed in range(count)]
    equal = 0
    for hash_seed in ("1", "2"):
        process = subprocess.run(
            [sys.executable, "-c", HASHES, str(Path(__file__).parent), str(count)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        equal += sum(a == b for a, b in zip(here, process.stdout.split(), strict=True))
    record_property(
        "FIGURE", f"simulation.persist.replayed {equal}/{2 * count} all {'pass' if equal == 2 * count else 'miss'}"
    )
    assert equal == 2 * count


def test_a_seed_that_is_asked_for_is_the_only_one(monkeypatch) -> None:
    """Damage: the command that a failure prints runs other histories than the one that failed."""
    monkeypatch.delenv(RUNS, raising=False)
    monkeypatch.delenv(SEED, raising=False)
    assert seeds(5, 3) == range(5, 8)
    monkeypatch.setenv(SEED, "17")
    assert seeds(5, 3) == range(17, 18)
    monkeypatch.setenv(RUNS, "4")
    assert seeds(5, 3) == range(17, 21)
    monkeypatch.setenv(SEED, "")
    assert seeds(5, 3) == range(5, 9)


def test_the_seeds_of_a_campaign_are_known_ones_and_as_many_new_ones(monkeypatch) -> None:
    """Damage: what shows a planted bug is never shown to be right without it; or each run makes the same histories."""
    monkeypatch.delenv(RUNS, raising=False)
    monkeypatch.delenv(SEED, raising=False)
    these = mixed("whole", 3)
    same, new = these[: len(these) // 2], these[len(these) // 2 :]
    assert {0, 1, 2} | telling("whole") == set(same)
    assert len(new) == len(set(new)) == len(same)
    assert set(new).isdisjoint(same)
    monkeypatch.setenv(SEED, "17")
    assert mixed("whole", 3) == range(17, 18)


def test_a_failing_history_says_how_to_replay_it() -> None:
    """Damage: an engineer that reads the failure cannot make it happen again."""

    def fail(_: object) -> None:
        raise AssertionError("planted")

    with pytest.raises(AssertionError) as caught:
        play(23, fail)
    assert caught.value.__notes__ == ["replay this history: make sim SEED=23"]


def test_the_step_budget_is_the_worlds_own() -> None:
    """Damage: a run that hangs is taken for a long one."""
    assert STEPS_MAX < KERNEL_STEPS_MAX
