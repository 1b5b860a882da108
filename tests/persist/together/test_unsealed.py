"""Unsealed batches: durable at once, in no read before they are sealed, and in one batch afterwards."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from strandline.errors import Indeterminate, InvalidUsage
from strandline.frontier import EMPTY, Frontier
from strandline.persist.shard import codec
from strandline.persist.shard.batch import BlobPart, Digest, InlinePart, Staged
from strandline.persist.shard.invariants import check
from strandline.persist.shard.state import (
    FIRST_SEQNO,
    WRITERS_MAX,
    Append,
    Fenced,
    Rollup,
    ShardState,
    append,
    describe,
)
from strandline.persist.together.unsealed import (
    HOLD,
    OWNER,
    Allow,
    Pour,
    Poured,
    Refused,
    Seal,
    Straddling,
    Write,
    hold,
    pour,
)


def batch(lower, upper, n=1):
    """A batch of one update whose digest is ``n``."""
    return Staged(Frontier(lower), Frontier(upper), (InlinePart(b"x" * n, 1),), 1, 1, Digest(n, n), plain=True)


def write(name, lower, upper, n=1):
    """A step."""
    return Write(name, batch(lower, upper, n))


def seal(at):
    """A step."""
    return Seal(Frontier(at))


def stream():
    """A fresh stream."""
    state, _ = describe(ShardState("s", FIRST_SEQNO, rollups=(Rollup(FIRST_SEQNO, "r"),)), "rows", OWNER)
    return hold(state)[0]


class Shard:
    """A state, changed as a machine changes it: law by law, through its bytes."""

    def __init__(self):
        self.state = stream()
        self.tokens = 0

    def pour(self, *steps, token=None, epoch=1, writer="w", **options):
        """Commit steps; return the answer."""
        self.tokens += 1
        before = self.state
        request = Pour(writer, token or f"t{self.tokens}", epoch, steps, **options)
        after, answer = pour(before, request)
        if after is not before:
            after = replace(after, seqno=before.seqno + 1)
            check(before, after)
            diff = codec.decode_diff("s", after.seqno, codec.encode_diff("s", codec.difference(before, after)))
            assert codec.apply(before, [diff]) == after
            self.state = after
        return answer

    @property
    def bounds(self):
        """The trace: bounds and digests of its batches."""
        return [(b.lower.at, b.upper.at, b.digest.low) for b in self.state.batches]


def test_what_is_written_is_in_no_batch_until_it_is_sealed():
    """Damage: a reader treats an incomplete time as complete."""
    shard = Shard()
    assert shard.pour(write("a", 5, 6)) == Poured()
    assert (shard.bounds, list(shard.state.unsealed)) == ([], ["a"])
    assert shard.pour(seal(3)) == Poured()
    assert (shard.bounds, list(shard.state.unsealed)) == ([(0, 3, 0)], ["a"])
    assert shard.pour(seal(6)) == Poured()
    assert (shard.bounds, shard.state.unsealed) == ([(0, 3, 0), (3, 6, 1)], {})


def test_all_that_was_written_below_the_seal_becomes_one_batch():
    """Damage: each write costs every later read a part of the plan."""
    shard = Shard()
    shard.pour(write("a", 0, 1, 1), write("b", 2, 4, 2), write("c", 4, 9, 4))
    shard.pour(seal(4))
    assert (shard.bounds, list(shard.state.unsealed)) == ([(0, 4, 3)], ["c"])


def test_steps_take_effect_in_their_order_within_one_version():
    """Damage: a write that was called before a seal is refused, or one called after it is let in."""
    shard = Shard()
    seqno = shard.state.seqno
    assert shard.pour(write("a", 2, 3), seal(3), write("b", 3, 4), seal(4), Allow(Frontier(2))) == Poured()
    assert shard.state.seqno == seqno + 1
    assert (shard.bounds, shard.state.since) == ([(0, 4, 2)], Frontier(2))
    assert shard.pour(seal(5), write("c", 4, 5)) == Refused(1, Frontier(5))
    assert shard.state.upper == Frontier(4), "a pour is done whole or not at all"


def test_a_batch_across_the_seal_is_cut_first_and_then_only_its_pieces_are_there():
    """Damage: updates beyond the upper are in a batch below it, and are read twice or never."""
    shard = Shard()
    shard.pour(write("a", 2, 9, 5))
    assert shard.pour(seal(4)) == Straddling({"a": batch(2, 9, 5)}, Frontier(4))
    pieces = {"a": (write("a.0", 2, 4, 2), write("a.1", 4, 9, 3))}
    assert shard.pour(seal(4), pieces=pieces) == Poured()
    assert (shard.bounds, list(shard.state.unsealed)) == ([(0, 4, 2)], ["a.1"])
    assert shard.pour(seal(4), pieces=pieces) == Poured()  # the batch is gone: its pieces do not come back
    assert shard.bounds == [(0, 4, 2)]


def test_pieces_of_a_batch_that_is_written_and_cut_in_one_pour_may_be_cut_again():
    """Damage: another process seals meanwhile, and the write is lost with its first pieces."""
    shard = Shard()
    again = {"a": (write("a.0", 0, 4, 2), write("a.1", 4, 9, 3)), "a.1": (write("a.2", 4, 6), write("a.3", 6, 9, 2))}
    assert shard.pour(write("a", 0, 9, 5), seal(6), pieces=again) == Poured()
    assert (shard.bounds, list(shard.state.unsealed)) == ([(0, 6, 3)], ["a.3"])


def test_pieces_that_are_not_the_batch_are_a_bug():
    """Damage: cutting loses an update silently."""
    shard = Shard()
    shard.pour(write("a", 2, 9, 5))
    with pytest.raises(AssertionError, match="'a' is not its pieces"):
        shard.pour(seal(4), pieces={"a": (write("a.0", 2, 4, 2),)})


def test_the_same_pour_again_changes_nothing_whatever_came_meanwhile():
    """Damage: a write whose answer was lost is in the collection twice once it is sealed."""
    shard = Shard()
    shard.pour(write("a", 2, 3), token="one")
    shard.pour(seal(3), token="two")
    before = shard.state
    assert shard.pour(write("a", 2, 3), token="two") == Poured()
    assert shard.state is before


def crowd(shard, at=5):
    """Let so many others write that the state forgets all earlier writers."""
    for n in range(WRITERS_MAX + 1):
        shard.pour(write(f"{at}.{n}", at, at + 1), writer=f"w{n}")


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("crowded", [False, True])
def test_a_write_whose_token_is_forgotten_is_known_by_its_name_until_it_is_sealed(landed, crowded):
    """Damage: after many other writers, a write whose answer was lost is stored twice, or all writes fail."""
    shard = Shard()
    shard.pour(seal(3))
    if crowded:
        crowd(shard)
    pieces = {"a": (write("a.0", 4, 5), write("a.1", 5, 7, 2))}
    steps, lost = (write("a", 4, 7, 3), seal(5)), {"token": "lost", "writer": "w", "pieces": pieces}
    doubt = (shard.state.seqno, shard.state.upper)
    if landed:
        assert shard.pour(*steps, **lost) == Poured()
    crowd(shard, 6)
    before = shard.state
    assert shard.pour(*steps, **lost, doubt=doubt) == Poured()
    assert (shard.state is before) is landed
    assert ["a" in name for name in shard.state.unsealed].count(True) == 1


@pytest.mark.parametrize("landed", [False, True])
def test_a_write_that_may_be_forgotten_is_not_done_again(landed):
    """Damage: after many other writers, a write whose answer was lost is stored twice, or reported as refused."""
    shard = Shard()
    shard.pour(seal(3))
    lost = write("a", 5, 6)
    doubt = (shard.state.seqno, shard.state.upper)
    if landed:
        shard.pour(lost)
    crowd(shard)
    shard.pour(seal(7))
    with pytest.raises(Indeterminate, match="no longer known"):
        shard.pour(lost, writer="late", doubt=doubt)
    assert shard.pour(lost, writer="late") == Refused(0, Frontier(7)), "a first request needs no memory"
    assert shard.pour(seal(6), writer="late", doubt=doubt) == Poured(), "to seal again does no harm"


def test_sealing_and_releasing_again_or_less_changes_nothing():
    """Damage: two processes that seal one stream make each other fail, or reopen complete times."""
    shard = Shard()
    shard.pour(seal(7), Allow(Frontier(4)))
    before = shard.state
    assert shard.pour(seal(5), Allow(Frontier(3))) == Poured()
    assert shard.state is before


def test_an_older_epoch_does_nothing():
    """Damage: an environment that was replaced goes on writing."""
    shard = Shard()
    shard.pour(write("a", 1, 2), epoch=3)
    before = shard.state
    assert shard.pour(write("b", 1, 2), epoch=2) == Fenced(3)
    assert shard.state is before


def test_a_closed_stream_has_sealed_everything_and_takes_no_more():
    """Damage: what was written before the end is never read."""
    shard = Shard()
    shard.pour(write("a", 70, 80))
    assert shard.pour(Seal(EMPTY)) == Poured()
    assert (shard.bounds, shard.state.unsealed) == ([(0, None, 1)], {})
    assert shard.pour(write("b", 90, 91)) == Refused(0, EMPTY)
    assert shard.pour(seal(99)) == Poured()


def test_since_waits_for_the_stream_to_release_its_past():
    """Damage: another reader's progress compacts history that the stream still needs."""
    shard = Shard()
    assert shard.state.criticals[HOLD].since == Frontier(0)
    shard.pour(Allow(Frontier(9)))
    assert shard.state.since == Frontier(9)
    assert hold(shard.state)[0] is shard.state


def test_a_plain_writer_cannot_append_to_a_stream():
    """Damage: an append passes unsealed updates, which no read ever shows."""
    shard = Shard()
    with pytest.raises(InvalidUsage, match="by 'stream', not by 'a plain writer'"):
        append(shard.state, Append("w", "t", 1, (), Frontier(0), Frontier(1)))


def test_the_state_names_the_parts_of_what_is_not_sealed():
    """Damage: the collector of garbage deletes what was acknowledged as durable."""
    shard = Shard()
    part = BlobPart("s/parts/1", 9, 1, 0, "")
    shard.pour(Write("a", replace(batch(1, 2), parts=(part,))), write("b", 1, 2, 3))
    assert list(shard.state.parts) == [part, InlinePart(b"xxx", 1)]
    assert shard.state.inline_bytes == 3
