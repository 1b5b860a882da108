"""A failing store is retried for as long as the caller waits, and the error states the outcome."""

from __future__ import annotations

import pytest

from strandline.errors import AsOfError, Determinate, Indeterminate, Unavailable
from strandline.frontier import Frontier
from strandline.persist.handles.read import STUTTER_S
from strandline.persist.handles.records import Record
from strandline.persist.handles.register import Register
from strandline.persist.shard.patience import ATTEMPTS_MAX, Deadline, PatientBlob
from strandline.persist.shard.state import Appended
from strandline.store.unreliable import Outcome, UnreliableBlob
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync


def down(place):
    """Make Consensus refuse every call from now on."""

    async def refuse(*_):
        raise Determinate("an outage")

    place.consensus.scan = place.consensus.compare_and_set = refuse


@pytest.mark.parametrize("wait_s", [0, 0.3, 5, 20])
@pytest.mark.parametrize("lease", [False, True])
def test_a_read_ends_at_its_timeout_even_if_a_store_is_down(place, wait_s, lease):
    """Damage: a query with a timeout of a second hangs for a minute in an outage."""
    place.append(place.writer(), 0, 2)
    client = place.client()
    opening = client.leased_reader if lease else client.reader
    reader = run_sync(opening("s", place.schema, "orders"))
    down(place)
    place.clock.now += 10**9  # so that a beat is due too
    begun = place.clock.now
    with pytest.raises(Unavailable, match="in the time that was given"):
        run_sync(reader.snapshot(5, timeout_s=wait_s))
    assert place.clock.now - begun <= 1000 * max(wait_s, STUTTER_S)


def test_a_failing_store_is_retried_even_for_a_caller_that_does_not_wait(place):
    """Damage: each refused call to a store is an error of a query."""
    place.append(place.writer(), 0, 2, [["a", 0, 1]])
    reader = run_sync(place.client().reader("s", place.schema, "orders"))
    place.append(place.writer(), 2, 4)
    scan, failures = place.consensus.scan, [Determinate("refused")] * 3

    async def stutter(*asked):
        if failures:
            raise failures.pop()
        return await scan(*asked)

    place.consensus.scan = stutter
    assert place.rows(run_sync(reader.snapshot(3, timeout_s=0))) == [["a", 3, 1]]
    with pytest.raises(AsOfError, match="not complete"):
        run_sync(reader.snapshot(9, timeout_s=0))


@pytest.mark.parametrize(("outcome", "error"), [(Outcome.REFUSED, Unavailable), (Outcome.LOST, Indeterminate)])
def test_an_append_ends_at_its_timeout_and_reports_whether_it_may_have_happened(place, outcome, error):
    """Damage: a caller with a deadline waits a minute; or treats a possible commit as one that did not happen."""
    writer = place.writer()
    place.plan.extend([outcome] * ATTEMPTS_MAX)
    begun = place.clock.now
    with pytest.raises(error):
        place.append(writer, 0, 1, [["a", 0, 1]], timeout_s=3)
    assert 1000 < place.clock.now - begun <= 3000


def test_a_clock_that_is_set_back_makes_no_deadline_later(place):
    """Damage: a wait of a second lasts for the hour by which a clock was wrong."""
    deadline = Deadline(place.clock, 10)
    place.clock.now += 4_000
    assert deadline.left_s() == 6
    place.clock.now -= 3_600_000
    assert deadline.left_s() == 6
    place.clock.now += 7_000
    assert deadline.left_s() == -1


@pytest.mark.parametrize("asked", ["refresh", "open", "append", "register", "part"])
def test_a_silent_store_is_left_after_a_minute_and_the_call_in_flight(place, asked):
    """Damage: a store that answers no request is asked 64 times for a minute each, and the item hangs for an hour."""
    writer, client = place.writer(), place.client()
    reader = run_sync(client.reader("s", place.schema, "orders"))

    async def silent(*_):
        place.clock.now += 60_000
        raise Indeterminate("no answer within 60 s")

    for store in (place.consensus, place.blob):
        for name in ("scan", "head", "compare_and_set", "get", "set"):
            if hasattr(store, name):
                setattr(store, name, silent)
    begun = place.clock.now
    with pytest.raises((Unavailable, Indeterminate)):
        match asked:
            case "refresh":
                run_sync(reader.refresh())
            case "open":
                run_sync(client.reader("other", place.schema, "other"))
            case "append":
                place.append(writer, 0, 1, [["a", 0, 1]])
            case "register":
                run_sync(Register("r", place.clock, CountingIds(), place.consensus).update(lambda _: b"x"))
            case _:
                run_sync(PatientBlob(place.blob, place.clock, client.metrics).get("k"))
    assert place.clock.now - begun <= 120_000


# ---- Blob


def stuttering(place, client, index, count):
    """Make the client's Blob fail ``count`` calls in a row, each with outcome ``AT_ONCE[index]``."""
    left = [count]

    def choose(label, _):
        left[0] -= label in {"blob.get", "blob.set"}
        return index if left[0] >= 0 and label in {"blob.get", "blob.set"} else 0

    client.blob = UnreliableBlob(place.blob, choose)


BIG = Record(b"x" * 20_000, 0, 1)


@pytest.mark.parametrize("index", [1, 2, 3])
def test_records_are_written_and_read_though_blob_stutters(place, index):
    """Damage: an INSERT fails, in doubt, for one lost answer of the object store."""
    client = place.client()
    stuttering(place, client, index, 0)
    log = run_sync(client.records("log", 1))
    stuttering(place, client, index, 3)
    log = run_sync(client.records("log", 1))
    assert run_sync(log.append([BIG], Frontier(0), Frontier(1))) == Appended(Frontier(1))
    assert client.metrics.retries == 3
    stuttering(place, client, index, 3)
    assert run_sync(run_sync(client.records("log", 1)).contents()) == [BIG]
    assert client.metrics.retries == 6
    assert client.metrics.indeterminate == (6 if index < 3 else 0)


@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_part_that_cannot_be_written_leaves_nothing_in_doubt(place, index):
    """Damage: a caller must look for rows that nothing can name."""
    client = place.client()
    run_sync(client.records("log", 1))
    stuttering(place, client, index, 10**6)
    with pytest.raises(Unavailable, match="try again later"):
        run_sync(run_sync(client.records("log", 1)).append([BIG], Frontier(0), Frontier(1)))
    assert place.state("log").upper == Frontier(0)


def test_deletes_are_asked_for_once(place):
    """Damage: cleaning up after a refusal takes a minute in an outage."""
    client = place.client()
    blob = PatientBlob(UnreliableBlob(place.blob, lambda *_: 3), place.clock, client.metrics)
    with pytest.raises(Determinate):
        run_sync(blob.delete("k"))
    assert client.metrics.retries == 0
