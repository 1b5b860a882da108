"""Each law refuses the states that it forbids."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from strandline.frontier import EMPTY, MINIMUM, Frontier
from strandline.persist.shard.batch import NOTHING, Batch, Digest, InlinePart, Staged
from strandline.persist.shard.invariants import LAWS, check
from strandline.persist.shard.state import Critical, ShardState, Writer


def batch(lower, upper, rows=1, digest=None):
    """A batch; of no rows: without parts."""
    parts = (InlinePart(b"", rows),) if rows else ()
    sums = digest or (Digest(rows, rows) if rows else NOTHING)
    return Batch(Frontier(lower), Frontier(upper), MINIMUM, parts, rows, rows, sums, plain=True)


def staged(lower):
    """A batch that is not sealed."""
    return Staged(Frontier(lower), Frontier(lower + 1), (InlinePart(b"", 1),), 1, 1, Digest(1, 1), plain=True)


GOOD = ShardState(
    "s",
    seqno=5,
    walltime_ms=100,
    epoch=3,
    since=Frontier(1),
    upper=Frontier(6),
    digest=Digest(2, 2),
    schema="a int",
    batches=(batch(0, 2), batch(2, 4), batch(4, 6, 0)),
    writers={"w": Writer("t", Frontier(6), 3)},
    criticals={"r": Critical(Frontier(2), 1)},
)
NEXT = replace(GOOD, seqno=6)
GROWN = replace(
    NEXT,
    upper=Frontier(8),
    digest=Digest(3, 3),
    batches=(*GOOD.batches, batch(6, 8)),
    writers={"w": Writer("u", Frontier(8), 3)},
)

BROKEN = {
    "P2": [
        replace(NEXT, since=MINIMUM),
        replace(NEXT, upper=Frontier(5)),
        replace(NEXT, seqno=5),
        replace(NEXT, seqno=7),
        replace(NEXT, epoch=2),
        replace(NEXT, walltime_ms=99),
    ],
    "history": [
        replace(NEXT, batches=(batch(0, 2, 1, Digest(1, 9)), *GOOD.batches[1:])),
        replace(NEXT, batches=GOOD.batches[:2]),
        replace(NEXT, batches=GOOD.batches[1:]),
        replace(GROWN, batches=(*GOOD.batches[:2], batch(4, 8))),
        replace(GROWN, batches=(*GOOD.batches[:2], batch(4, 5, 0), batch(5, 8))),
    ],
    "contiguous": [
        replace(GROWN, batches=(*GOOD.batches, batch(7, 8))),
        replace(GROWN, batches=(*GOOD.batches, batch(5, 8))),
        replace(GROWN, batches=(*GOOD.batches, batch(6, 7))),
        replace(GROWN, batches=(*GOOD.batches[:2], batch(4, 7, 0), batch(6, 8))),
        replace(GROWN, batches=GOOD.batches),
    ],
    "digest": [replace(GROWN, digest=Digest(2, 2)), replace(NEXT, digest=NOTHING)],
    "holds": [
        replace(NEXT, since=Frontier(3)),
        replace(NEXT, since=EMPTY),
        replace(NEXT, criticals={"r": Critical(Frontier(1), 1)}),
    ],
    "described": [replace(NEXT, schema="b int"), replace(NEXT, owner="x")],
    "P6": [
        replace(GROWN, writers=GOOD.writers),
        replace(GROWN, writers={}),
        replace(GROWN, writers={"w": Writer("u", EMPTY, 3)}),
    ],
    "unsealed": [
        replace(GROWN, unsealed={"a": staged(7)}),
        replace(NEXT, unsealed={"a": staged(9)}),
    ],
}


def test_every_law_has_a_state_that_breaks_it():
    """Damage: a law that nothing can break protects nothing."""
    assert set(BROKEN) == {law.name for law in LAWS}


@pytest.mark.parametrize(("name", "after"), [(name, after) for name, states in BROKEN.items() for after in states])
def test_a_law_stops_the_state_that_breaks_it(name, after):
    """Damage: the effect of a bug becomes durable."""
    law = next(law for law in LAWS if law.name == name)
    assert not law.holds(GOOD, after)
    with pytest.raises(AssertionError, match="is broken in shard 's'"):
        check(GOOD, after)


@pytest.mark.parametrize(("name", "after"), [(name, after) for name, states in BROKEN.items() for after in states])
def test_the_message_of_a_broken_law_shows_no_row(name, after):
    """Damage: logs and bug reports contain the users' rows."""
    canary = b"canary: Ann, 1 Main Street"

    def filled(state):
        batches = tuple(replace(b, parts=tuple(replace(part, data=canary) for part in b.parts)) for b in state.batches)
        unsealed = {name: replace(each, parts=(InlinePart(canary, 1),)) for name, each in state.unsealed.items()}
        return replace(state, batches=batches, unsealed=unsealed)

    with pytest.raises(AssertionError) as raised:
        check(filled(GOOD), filled(after))
    said = str(raised.value)
    assert "canary" not in said
    assert said.startswith("law ")
    assert "version 5, since [1], upper [6], epoch 3, 3 batches" in said
    assert "canary" not in repr(filled(after)), "states stand in other messages too"


@pytest.mark.parametrize("after", [NEXT, GROWN, replace(NEXT, criticals={}), replace(NEXT, since=Frontier(2))])
def test_a_good_step_breaks_none(after):
    """Damage: the laws stop what is legal."""
    check(GOOD, after)


def test_a_whole_state_is_checked_against_an_empty_one():
    """Damage: a state that is read back cannot be checked, because its predecessor is not known."""
    blank = ShardState("s", seqno=GOOD.seqno - 1)
    check(blank, GOOD)
    with pytest.raises(AssertionError, match="contiguous"):
        check(blank, replace(GOOD, batches=(batch(0, 1), *GOOD.batches[1:])))
