"""Sources of several outputs keep every law in every history, which are worth something; planted bugs break one."""

from __future__ import annotations

import pytest

from planted.tables import BUGS, Bug
from worlds.campaign import ASKED_FOR, mixed
from worlds.histories import judge, must_break, one_fault_everywhere
from worlds.tables_users import perform, play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

HISTORIES = 80
"""Those that are the same each time; as many new ones come with them."""
LONG_HISTORIES = 20_000
SEEDS_MAX = 600
"""A planted bug must be found by then; the unmodified code passes the seed that finds it."""
MARKS = frozenset({"fenced", "unanswered", "tick: stalled", "step: stalled"})
LAWS = frozenset({"R1", "R2", "R4", "L2", "reread"})
SITE = "upstream.commit"
EVERY = 7
"""Of so many pairs of point and fate of the script one is tried."""


def test_every_law_holds_in_every_history(record_property) -> None:
    """Damage: a table of a database loses, repeats or misdates rows; or upstream deletes what one of them needs."""
    judge("tables", play, mixed("tables", HISTORIES), MARKS, SITE, record_property)


@pytest.mark.slow
def test_every_law_holds_in_many_more_histories(record_property) -> None:
    """Damage: as above, where it takes rare luck."""
    judge("tables", play, range(1_000_000, 1_000_000 + LONG_HISTORIES), MARKS, SITE, record_property)


def test_a_history_is_a_function_of_its_seed() -> None:
    """Damage: what a seed found cannot be found again."""
    assert play(7).simulation.trace_hash() == play(7).simulation.trace_hash()
    assert play(7).simulation.trace_hash() != play(8).simulation.trace_hash()


def test_single_faults_leave_all_laws_intact(record_property) -> None:
    """Damage: there is an instruction at which a crash, or a lost answer, loses or doubles rows of a table."""
    one_fault_everywhere("tables", perform, EVERY, record_property)


@pytest.mark.slow
def test_every_single_fault_at_every_point_leaves_all_laws_intact(record_property) -> None:
    """Damage: the same."""
    one_fault_everywhere("tables", perform, 1, record_property)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that an engineer will make."""
    must_break(bug, "tables", play, LAWS, SEEDS_MAX, record_property)
