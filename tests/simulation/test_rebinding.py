"""A materialization keeps every law while views come and go; planted bugs break one."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from planted.rebinding import BUGS, Bug
from worlds.campaign import ASKED_FOR, deal, mixed
from worlds.histories import made, must_break
from worlds.rebinding import Is, play_rebinding, play_rebinding_splits

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

HISTORIES = 150
"""Those that are the same each time; as many new ones come with them."""
SPLIT_HISTORIES = 40
LONG_HISTORIES = 30_000
SEEDS_MAX = 3_000
"""A planted bug must be found by then; the unmodified code passes the seed that finds it."""
LAWS = frozenset({"M1", "M2", "M3", "M4", "M6", "L1"})
MARKS = frozenset(
    {
        *(f"{Is.BOUND.value}: {each.value}" for each in (Is.KEPT, Is.EMPTIED)),
        *(f"{Is.KEPT.value}: {each.value}" for each in (Is.BOUND, Is.EMPTIED)),
        *(f"{Is.EMPTIED.value}: {each.value}" for each in (Is.BOUND, Is.GONE)),
        f"{Is.GONE.value}: {Is.BOUND.value}",
        *("fenced", "ended", "under way", "Unavailable", "Indeterminate"),
    }
)
SPLIT_MARKS = frozenset({"bound: kept", "bound: emptied", "kept: bound", "emptied: bound", "fenced", "ended"})


def hold(seeds, record_property, play=play_rebinding, campaign: str = "rebinding", marks=MARKS) -> None:
    """Make histories on all processors: views come and go in every way, and rows come to endpoints."""
    met: Counter[str] = Counter()
    commits, traces = 0, set()
    for some, many, distinct, _ in deal(seeds, partial(made, play)):
        met += some
        commits += many
        traces |= distinct
    assert set(met) >= marks
    assert len(traces) >= 0.99 * len(seeds)
    assert commits >= 2 * len(seeds)
    record_property("FIGURE", f"{campaign}.histories {len(seeds)} >={len(seeds)} pass")
    record_property("FIGURE", f"{campaign}.newest-seed {seeds[-1]} - info")
    record_property("FIGURE", f"{campaign}.commits-per-history {commits / len(seeds):.1f} >=2 pass")


def test_every_law_holds_in_every_history(record_property) -> None:
    """Damage: rows of a view that stays come twice, or those of one that came or went are wrong."""
    hold(mixed("rebinding", HISTORIES), record_property)


def test_every_law_holds_in_every_history_with_splits(record_property) -> None:
    """Damage: the same, because other splits and other views come at once."""
    seeds = mixed("rebinding-splits", SPLIT_HISTORIES)
    hold(seeds, record_property, play_rebinding_splits, "rebinding-splits", SPLIT_MARKS)


@pytest.mark.slow
def test_every_law_holds_in_many_more_histories(record_property) -> None:
    """Damage: as above, where it takes rare luck."""
    hold(range(1_000_000, 1_000_000 + LONG_HISTORIES), record_property)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that an engineer will make."""
    must_break(bug, "rebinding", play_rebinding, LAWS, SEEDS_MAX, record_property)
