"""Readers: a snapshot waits until it is complete, a listener tells each update once, and nothing unreadable is read."""

from __future__ import annotations

import pytest

from strandline.errors import AsOfError
from strandline.frontier.antichain import EMPTY, TIME_MAX, Frontier
from strandline.persist.plane import Half
from strandline.testing.simulation import run_sync


def reader(place, client=None):
    """Open a reader."""
    return run_sync((client or place.client()).reader("s", place.schema, "orders"))


def hold_at(place, frontier):
    """Move the shard's since."""
    run_sync(run_sync(place.client().since("s", "hold", 1)).downgrade(frontier))


def told(place, listening, count):
    """The next windows that a listener gives."""

    async def some():
        windows = []
        for _ in range(count):
            try:
                contents, frontier = await anext(listening)
            except StopAsyncIteration:
                break
            windows.append((place.rows(contents), frontier.at))
        return windows

    return run_sync(some())


def test_a_shard_that_does_not_exist_has_no_reader(place):
    """Damage: reading creates."""
    assert reader(place) is None


def test_a_snapshot_waits_until_its_time_is_complete(place):
    """Damage: a reader sees half of an instant."""
    writer, late = place.writer(), None
    place.append(writer, 0, 2, [["a", 0, 1]])
    late = reader(place)
    place.clock.meanwhile.extend([later(place, writer)] * 1)
    assert place.rows(run_sync(late.snapshot(3))) == [["a", 3, 1], ["b", 3, 1]]


def later(place, writer):
    """Append up to 4."""
    staged = place.stage("s", 2, 4, [["b", 2, 1]])
    return lambda: writer.compare_and_append([staged], Frontier(2), Frontier(4))


def test_a_snapshot_gives_up_when_it_is_told_to(place):
    """Damage: a client hangs on a source that is down."""
    place.append(place.writer(), 0, 2)
    with pytest.raises(AsOfError, match="not complete at 5 yet: its upper is \\[2\\]"):
        run_sync(reader(place).snapshot(5, timeout_s=0))
    before = place.clock.now
    with pytest.raises(AsOfError):
        run_sync(reader(place).snapshot(5, timeout_s=3))
    assert 3_000 <= place.clock.now - before <= 5_000


@pytest.mark.parametrize("time", [-1, TIME_MAX, TIME_MAX + 1])
def test_a_time_that_is_none_is_refused(place, time):
    """Damage: a usage error is reported as a crash of ours."""
    place.append(place.writer(), 0, None)
    with pytest.raises(AsOfError):
        run_sync(reader(place).snapshot(time))


def test_a_clock_that_is_set_back_does_not_prolong_a_wait(place):
    """Damage: a reader with a timeout of a second polls, and beats, for as long as the clock was set back."""
    place.append(place.writer(), 0, 1)
    waiting = reader(place)
    sleeps = 0

    async def set_back():
        nonlocal sleeps
        sleeps += 1
        place.clock.now -= 3_600_000 if sleeps == 1 else 0
        assert sleeps < 20, "it does not end"
        place.clock.meanwhile.append(set_back)

    place.clock.now = 10_000_000
    place.clock.meanwhile.append(set_back)
    with pytest.raises(AsOfError, match="not complete at 5"):
        run_sync(waiting.snapshot(5, timeout_s=0.2))


def test_before_since_nothing_is_read_and_nobody_waits(place):
    """Damage: wrong rows after compaction; or a wait for what can never come."""
    place.append(place.writer(), 0, 9, [["a", 1, 1]])
    hold_at(place, Frontier(4))
    with pytest.raises(AsOfError, match=r"since \[4\]"):
        run_sync(reader(place).snapshot(3))
    assert place.rows(run_sync(reader(place).snapshot(4))) == [["a", 4, 1]]
    hold_at(place, EMPTY)
    with pytest.raises(AsOfError, match=r"since \[\]"):
        run_sync(reader(place).snapshot(10**9))


def test_changes_are_the_updates_between(place):
    """Damage: a feed gives a row twice, or not at all, at the edge of two windows."""
    writer = place.writer()
    for at in range(6):
        place.append(writer, at, at + 1, [[str(at), at, 1]])
    read = reader(place)
    windows = [place.rows(run_sync(read.changes(lower, lower + 2))) for lower in (0, 2, 4)]
    assert [k for window in windows for k, _, _ in window] == list("012345")
    assert place.rows(run_sync(read.changes(2, 2))) == []


def test_changes_of_a_time_that_is_not_known_or_gone_are_refused(place):
    """Damage: a feed takes what it was given for everything there is."""
    place.append(place.writer(), 0, 6, [["a", 1, 1]])
    hold_at(place, Frontier(3))
    with pytest.raises(AsOfError, match="not known yet"):
        run_sync(reader(place).changes(2, 7))
    with pytest.raises(AsOfError, match="compacted"):  # what is at 3 cannot be told from what was before
        run_sync(reader(place).changes(3, 6))
    run_sync(reader(place).changes(4, 6))
    with pytest.raises(AsOfError, match="compacted"):
        run_sync(reader(place).changes(0, 3))
    assert place.rows(run_sync(reader(place).changes(0, 6))) == [["a", 1, 1]]


def test_a_history_begins_with_the_contents_at_since(place):
    """Damage: what is told of a shard's past depends on whether it was compacted already."""
    place.append(place.writer(), 0, 6, [["a", 1, 1], ["b", 3, 1], ["c", 5, 1]])
    hold_at(place, Frontier(3))
    assert place.rows(run_sync(reader(place).history(6))) == [["a", 3, 1], ["b", 3, 1], ["c", 5, 1]]
    with pytest.raises(AsOfError, match="not known yet"):
        run_sync(reader(place).history(7))
    with pytest.raises(AsOfError, match="compacted"):
        run_sync(reader(place).history(3))


def test_a_listener_is_told_each_update_after_its_time_once(place):
    """Damage: a subscriber counts a row twice or misses it."""
    writer = place.writer()
    place.append(writer, 0, 3, [["a", 0, 1], ["b", 1, 1], ["c", 2, 1]])
    listening = reader(place).listen(0)
    assert told(place, listening, 1) == [([["b", 1, 1], ["c", 2, 1]], 3)]
    place.append(writer, 3, 4, [["d", 3, 1]])
    place.append(writer, 4, 5, [["e", 4, -1]])
    assert told(place, listening, 1) == [([["d", 3, 1], ["e", 4, -1]], 5)]
    place.append(writer, 5, None, [["f", 5, 1]])
    assert told(place, listening, 3) == [([["f", 5, 1]], None)]


def test_a_listener_whose_times_nobody_held_is_told_so(place):
    """Damage: a subscriber silently misses updates that were compacted before it came."""
    place.append(place.writer(), 0, 9, [["a", 1, 1]])
    hold_at(place, Frontier(5))
    with pytest.raises(AsOfError, match="compacted"):
        told(place, reader(place).listen(4), 1)
    assert told(place, reader(place).listen(5), 1) == [([], 9)]


def test_contents_name_the_batches_that_overlap_and_no_others(place):
    """Damage: every window reads the whole shard."""
    writer = place.writer()
    for at in range(6):
        place.append(writer, at, at + 1, [[str(at), at, 1]] if at != 3 else [])
    contents = run_sync(reader(place).changes(2, 5))
    assert [b.lower.at for b in contents.batches] == [2, 4]
    assert contents.rows == 2
    assert contents.plain


def test_halves_are_asked_for_by_name(place):
    """Damage: errors are read as rows."""
    place.append(place.writer(), 0, 1, [["a", 0, 1]])
    assert place.rows(run_sync(reader(place).snapshot(0))) == [["a", 0, 1]]
    assert run_sync(reader(place).snapshot(0, half=Half.ERR)).half is Half.ERR


def test_a_reader_shares_what_its_process_commits(place):
    """Damage: a client does not see its own write without a round trip."""
    client = place.client()
    writer = place.writer(client=client)
    read = reader(place, client)
    place.append(writer, 0, 4)
    assert read.state.upper == Frontier(4)


def test_a_listen_remembers_nothing_of_what_it_told(place):
    """Damage: a reader that listens for months grows by an entry with every time it is told of."""
    writer = place.writer()
    handle = reader(place)
    listening = handle.listen(0)
    for at in range(20):
        place.append(writer, at, at + 1)
        if at:
            told(place, listening, 1)
    assert len(handle._listening) == 1
    run_sync(listening.aclose())
    assert len(handle._listening) == 0
