"""A materialization keeps every law in every history, whatever the endpoint's pattern; planted bugs break one."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from laws.broken import LawBrokenError
from planted.pushed import BUGS, Bug
from strandline.materialize.runtime import Task
from worlds.campaign import ASKED_FOR, deal, mixed
from worlds.histories import made, must_break
from worlds.pushed import play, play_split
from worlds.pushed_endpoints import PATTERNS

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

SPLIT_HISTORIES = 75
"""Those that are the same each time; as many new ones come with them."""
HISTORIES = 450
"""Those that are the same each time."""
NEW_HISTORIES = 450
"""So many new ones come with them."""
LONG_HISTORIES = 100_000
SEEDS_MAX = 3_000
"""A planted bug must be found by then; the unmodified code passes the seed that finds it."""
MARKS = frozenset({"fenced", "ended", "under way", "Unavailable", "Indeterminate"})
LAWS = frozenset({"M1", "M2", "M3", "M4", "L1"})


def hold(seeds: list[int] | range, record_property, play=play, campaign: str = "pushed", busy: float = 0.1) -> None:
    """Make histories on all processors: users meet what they are there to meet, and rows come to endpoints.

    ``busy``: in how many of them, at least, a transaction is read while the endpoint commits.
    """
    met: Counter[str] = Counter()
    commits, traces = 0, set()
    for some, many, distinct, _ in deal(seeds, partial(made, play)):
        met += some
        commits += many
        traces |= distinct
    assert set(met) >= MARKS
    assert met["under way"] >= len(seeds) * busy, "transactions are read while the endpoint commits"
    assert len(traces) >= 0.99 * len(seeds)
    assert commits >= 2 * len(seeds)
    record_property("FIGURE", f"{campaign}.histories {len(seeds)} >={len(seeds)} pass")
    record_property("FIGURE", f"{campaign}.newest-seed {seeds[-1]} - info")
    record_property("FIGURE", f"{campaign}.commits-per-history {commits / len(seeds):.1f} >=2 pass")


def test_every_law_holds_in_every_history(record_property) -> None:
    """Damage: a row is lost or doubled at an endpoint, or a runtime and its driver wait for each other for ever."""
    hold(mixed("pushed", HISTORIES, NEW_HISTORIES), record_property)


def test_every_law_holds_in_every_history_with_splits(record_property) -> None:
    """Damage: the same, because runtimes with other numbers of splits follow each other."""
    hold(mixed("split", SPLIT_HISTORIES), record_property, play_split, "split", 0.05)


def test_splits_that_forget_what_is_to_be_replayed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the simulation is blind to a mistake that was made: rows that the whole task had stored came twice."""
    monkeypatch.setattr(Task, "untouched", property(lambda self: not self.begun))
    monkeypatch.setattr(Task, "replays_to", property(lambda _: 0))
    with pytest.raises(LawBrokenError):
        for seed in range(SEEDS_MAX):
            play_split(seed)


@pytest.mark.slow
def test_every_law_holds_in_many_more_histories(record_property) -> None:
    """Damage: as above, where it takes rare luck."""
    hold(range(1_000_000, 1_000_000 + LONG_HISTORIES), record_property)
    hold(range(1_000_000, 1_000_000 + LONG_HISTORIES // 4), record_property, play_split, "split", 0.05)


def test_a_history_is_a_function_of_its_seed() -> None:
    """Damage: what a seed found cannot be found again."""
    for seed in range(len(PATTERNS)):
        assert play(seed).simulation.trace_hash() == play(seed).simulation.trace_hash()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that an engineer will make."""
    must_break(bug, "pushed", play, LAWS, SEEDS_MAX, record_property)
