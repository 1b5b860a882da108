"""Every law of streams holds in every history; the histories are worth something; each planted bug breaks one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from planted.streams import BUGS, Bug
from strandline.testing.simulation.kernel import Fate
from worlds.campaign import ASKED_FOR, deal, mixed
from worlds.histories import must_break
from worlds.streams import play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

HISTORIES = 75
"""Those that are the same each time; as many new ones come with them."""
LONG_HISTORIES = 20_000
SEEDS_MAX = 1_000
"""A planted bug must be found by then; the unmodified code passes the seed that finds it."""
MARKS = frozenset({"call: unanswered", "write: done", "write: refused", "together: unanswered", "read"})
LAWS = frozenset({"P1", "P3", "P5", "P6", "L1", "atomic", "negative", "order", "refused", "told", "unsealed"})


def made(seeds: Sequence[int]) -> tuple[Counter[str], int, set[str]]:
    """Make histories; return what callers met, how much was acknowledged, and the distinct traces."""
    marks: Counter[str] = Counter()
    acknowledged, traces = 0, set()
    for seed in seeds:
        world = play(seed)
        marks.update({mark: n for mark, n in world.marks.items() if isinstance(mark, str)})
        acknowledged += world.acknowledged
        traces.add(world.simulation.trace_hash())
    return marks, acknowledged, traces


def judged(seeds: Sequence[int], record_property) -> None:
    """Make histories on all processors, and judge whether they were worth it."""
    marks: Counter[str] = Counter()
    acknowledged, traces = 0, set()
    for some, many, distinct in deal(seeds, made):
        marks += some
        acknowledged += many
        traces |= distinct
    assert set(marks) >= MARKS, "callers meet what they are there to meet"
    assert len(traces) >= 0.99 * len(seeds)
    assert acknowledged >= 8 * len(seeds)
    record_property("FIGURE", f"streams.histories {len(seeds)} >={len(seeds)} pass")
    record_property("FIGURE", f"streams.newest-seed {seeds[-1]} - info")
    record_property("FIGURE", f"streams.acknowledged-per-history {acknowledged / len(seeds):.1f} >=8 pass")


def test_every_law_holds_in_every_history(record_property) -> None:
    """Damage: a program that writes without waiting loses, repeats or reorders what it wrote."""
    judged(mixed("streams", HISTORIES), record_property)


@pytest.mark.slow
def test_every_law_holds_in_many_more_histories(record_property) -> None:
    """Damage: as above, where it takes rare luck."""
    judged(range(1_000_000, 1_000_000 + LONG_HISTORIES), record_property)


def test_a_history_is_a_function_of_its_seed() -> None:
    """Damage: what a seed found cannot be found again."""
    assert play(7).simulation.trace_hash() == play(7).simulation.trace_hash()
    assert play(7).simulation.trace_hash() != play(8).simulation.trace_hash()
    assert any(step.fate is Fate.LATE for seed in range(9) for step in play(seed).simulation.trace)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that an engineer will make."""
    must_break(bug, "streams", play, LAWS, SEEDS_MAX, record_property)
