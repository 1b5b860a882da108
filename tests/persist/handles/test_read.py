"""Readers: a snapshot waits until it is complete, a listener yields each update once, and reads before since fail."""

from __future__ import annotations

import pytest

from strandline.errors import AsOfError
from strandline.frontier import EMPTY, TIME_MAX, Frontier
from strandline.persist.handles.contents import Half
from strandline.testing.simulation.kernel import run_sync


def reader(place, client=None):
    """Open a reader."""
    return run_sync((client or place.client()).reader("s", place.schema, "orders"))


def hold_at(place, frontier):
    """Move the shard's since."""
    run_sync(run_sync(place.client().since("s", "hold", 1)).downgrade(frontier))


def windows(place, listening, count):
    """The next windows that a listener yields."""

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


def test_a_snapshot_gives_up_at_its_timeout(place):
    """Damage: a client hangs on a source that is down."""
    place.append(place.writer(), 0, 2)
    with pytest.raises(AsOfError, match="not complete at 5 yet: its upper is \\[2\\]"):
        run_sync(reader(place).snapshot(5, timeout_s=0))
    before = place.clock.now
    with pytest.raises(AsOfError):
        run_sync(reader(place).snapshot(5, timeout_s=3))
    assert 3_000 <= place.clock.now - before <= 5_000


@pytest.mark.parametrize("time", [-1, TIME_MAX, TIME_MAX + 1])
def test_an_invalid_time_is_refused(place, time):
    """Damage: a usage error looks like a bug of Strandline."""
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


def test_a_read_before_since_is_refused_at_once(place):
    """Damage: wrong rows after compaction; or a wait that can never end."""
    place.append(place.writer(), 0, 9, [["a", 1, 1]])
    hold_at(place, Frontier(4))
    with pytest.raises(AsOfError, match=r"since \[4\]"):
        run_sync(reader(place).snapshot(3))
    assert place.rows(run_sync(reader(place).snapshot(4))) == [["a", 4, 1]]
    hold_at(place, EMPTY)
    with pytest.raises(AsOfError, match=r"since \[\]"):
        run_sync(reader(place).snapshot(10**9))


def test_changes_are_the_updates_between(place):
    """Damage: a listener yields a row twice, or not at all, at the edge of two windows."""
    writer = place.writer()
    for at in range(6):
        place.append(writer, at, at + 1, [[str(at), at, 1]])
    read = reader(place)
    windows = [place.rows(run_sync(read.changes(lower, lower + 2))) for lower in (0, 2, 4)]
    assert [k for window in windows for k, _, _ in window] == list("012345")
    assert place.rows(run_sync(read.changes(2, 2))) == []


def test_changes_of_a_time_that_is_unknown_or_compacted_are_refused(place):
    """Damage: a listener treats partial changes as complete."""
    place.append(place.writer(), 0, 6, [["a", 1, 1]])
    hold_at(place, Frontier(3))
    with pytest.raises(AsOfError, match="not known yet"):
        run_sync(reader(place).changes(2, 7))
    with pytest.raises(AsOfError, match="compacted"):  # updates at 3 cannot be distinguished from earlier ones
        run_sync(reader(place).changes(3, 6))
    run_sync(reader(place).changes(4, 6))
    with pytest.raises(AsOfError, match="compacted"):
        run_sync(reader(place).changes(0, 3))
    assert place.rows(run_sync(reader(place).changes(0, 6))) == [["a", 1, 1]]
    assert place.rows(run_sync(reader(place).changes(0, 4))) == [["a", 1, 1]], "its last time is since"


def test_changes_of_the_first_time_are_refused_once_it_is_mixed_with_the_second(place):
    """Damage: what a collection began with is taken for what it held a moment later."""
    place.append(place.writer(), 0, 6, [["a", 0, 1]])
    hold_at(place, Frontier(1))
    with pytest.raises(AsOfError, match="compacted"):
        run_sync(reader(place).changes(0, 1))


def test_a_history_begins_with_the_contents_at_since(place):
    """Damage: a history depends on whether the shard was compacted already."""
    place.append(place.writer(), 0, 6, [["a", 1, 1], ["b", 3, 1], ["c", 5, 1]])
    hold_at(place, Frontier(3))
    assert place.rows(run_sync(reader(place).history(6))) == [["a", 3, 1], ["b", 3, 1], ["c", 5, 1]]
    with pytest.raises(AsOfError, match="not known yet"):
        run_sync(reader(place).history(7))
    with pytest.raises(AsOfError, match="compacted"):
        run_sync(reader(place).history(3))


def test_a_history_has_the_updates_of_the_first_time(place):
    """Damage: what a collection began with is missing from its history."""
    place.append(place.writer(), 0, 2, [["a", 0, 1], ["b", 1, 1]])
    assert place.rows(run_sync(reader(place).history(2))) == [["a", 0, 1], ["b", 1, 1]]


def test_a_listener_gets_each_update_after_its_time_once(place):
    """Damage: a subscriber counts a row twice or misses it."""
    writer = place.writer()
    place.append(writer, 0, 3, [["a", 0, 1], ["b", 1, 1], ["c", 2, 1]])
    listening = reader(place).listen(0)
    assert windows(place, listening, 1) == [([["b", 1, 1], ["c", 2, 1]], 3)]
    place.append(writer, 3, 4, [["d", 3, 1]])
    place.append(writer, 4, 5, [["e", 4, -1]])
    assert windows(place, listening, 1) == [([["d", 3, 1], ["e", 4, -1]], 5)]
    place.append(writer, 5, None, [["f", 5, 1]])
    assert windows(place, listening, 3) == [([["f", 5, 1]], None)]


def test_a_listener_whose_times_were_compacted_gets_an_error(place):
    """Damage: a subscriber silently misses updates that were compacted before it came."""
    place.append(place.writer(), 0, 9, [["a", 1, 1]])
    hold_at(place, Frontier(5))
    with pytest.raises(AsOfError, match="compacted"):
        windows(place, reader(place).listen(4), 1)
    assert windows(place, reader(place).listen(5), 1) == [([], 9)]


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


def test_a_listen_keeps_nothing_of_the_updates_that_it_returned(place):
    """Damage: the memory of a reader that listens for months grows with every time that it yields."""
    writer = place.writer()
    handle = reader(place)
    listening = handle.listen(0)
    for at in range(20):
        place.append(writer, at, at + 1)
        if at:
            windows(place, listening, 1)
    assert len(handle._listening) == 1
    run_sync(listening.aclose())
    assert len(handle._listening) == 0
