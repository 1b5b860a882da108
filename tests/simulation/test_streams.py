"""Every law of streams holds in every history; the histories are worth something; each planted bug breaks one."""

from __future__ import annotations

from collections import Counter

import pytest

from planted.streams import BUGS, Bug
from strandline.testing.simulation import Fate
from worlds.campaign import ASKED_FOR
from worlds.persist import law_of
from worlds.streams import play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

HISTORIES = 400
LONG_HISTORIES = 20_000
SEEDS_MAX = HISTORIES
"""A planted bug must be found among the seeds that the unmodified code passes."""
MARKS = frozenset({"call: unanswered", "write: done", "write: refused", "together: unanswered", "read"})
LAWS = frozenset({"P1", "P3", "P5", "P6", "L1", "atomic", "negative", "order", "refused", "unsealed"})


def made(seeds: range) -> tuple[Counter, int, set]:
    """Make histories; return what callers met, how much was acknowledged, and the distinct traces."""
    marks: Counter = Counter()
    acknowledged, traces = 0, set()
    for seed in seeds:
        world = play(seed)
        marks.update({mark: n for mark, n in world.marks.items() if isinstance(mark, str)})
        acknowledged += world.acknowledged
        traces.add(world.simulation.trace_hash())
    return marks, acknowledged, traces


def test_every_law_holds_in_every_history(record_property) -> None:
    """Damage: a program that writes without waiting loses, repeats or reorders what it wrote."""
    marks, acknowledged, traces = made(range(HISTORIES))
    assert set(marks) >= MARKS, "callers meet what they are there to meet"
    assert len(traces) >= 0.99 * HISTORIES
    assert acknowledged >= 8 * HISTORIES
    record_property("FIGURE", f"streams.histories {HISTORIES} >={HISTORIES} pass")
    record_property("FIGURE", f"streams.acknowledged-per-history {acknowledged / HISTORIES:.1f} >=8 pass")


@pytest.mark.slow
def test_every_law_holds_in_many_more_histories() -> None:
    """Damage: as above, where it takes rare luck."""
    made(range(1_000_000, 1_000_000 + LONG_HISTORIES))


def test_a_history_is_a_function_of_its_seed() -> None:
    """Damage: what a seed found cannot be found again."""
    assert play(7).simulation.trace_hash() == play(7).simulation.trace_hash()
    assert play(7).simulation.trace_hash() != play(8).simulation.trace_hash()
    assert any(step.fate is Fate.LATE for seed in range(9) for step in play(seed).simulation.trace)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that somebody will make."""
    found = None
    with bug.planted():
        for seed in range(SEEDS_MAX):
            try:
                play(seed)
            except Exception as error:  # noqa: BLE001  # a bug may also end a run by what it raises: that is no law
                if law_of(error) in LAWS:
                    found = (seed, law_of(error))
                    break
    verdict = "pass" if found else "miss"
    seed, law = found or (SEEDS_MAX, "none")
    record_property("FIGURE", f"planted.{bug.name} seeds={seed + 1},law={law} <={SEEDS_MAX} {verdict}")
    assert found, bug.mistake
