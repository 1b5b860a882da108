"""Garbage collection deletes all that is dead and nothing else, whenever and however often it runs."""

from __future__ import annotations

import pytest

from strandline.errors import Determinate, Indeterminate, InvalidUsage
from strandline.frontier import EMPTY, Frontier
from strandline.persist.shard.batch import BlobPart
from strandline.persist.shard.holds import LEASE_MS
from strandline.persist.shard.state import Appended, UpperMismatch
from strandline.persist.shard.trace import FAN, Merged
from strandline.persist.upkeep import collect
from strandline.persist.upkeep.collect import DELETION_GRACE_MS, LEAKED_AFTER_MS, Collected, Collector
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync


def append(place, writer, at):
    """Append one row at ``at`` as an object of its own."""
    staged = place.stage("s", at, at + 1, [[f"k{at}", at, 1]], inline=0)
    assert run_sync(writer.compare_and_append([staged], Frontier(at), Frontier(at + 1))) == Appended(Frontier(at + 1))


def busy(place, count=5 * FAN, **options):
    """A shard in use; returns its writer."""
    writer = place.writer(client=place.client(place.engine, **{"grace_ms": 0, "rollup_every": 8} | options))
    for at in range(count):
        append(place, writer, at)
    return writer


def stored(place, kind="parts"):
    """The keys of a kind in Blob."""
    return sorted(key for key in place.objects if key.split("/")[1] == kind)


def named(place):
    """The parts that the newest version names."""
    return sorted(part.key for part in place.state().parts if isinstance(part, BlobPart))


def collector(place, **options):
    """A collector in a process of its own."""
    return run_sync(place.client(**{"grace_ms": 0} | options).collector("s"))


def test_a_shard_in_use_keeps_what_it_names_and_little_else(place):
    """Damage: the store grows with every append."""
    busy(place)
    assert len(place.versions["s"]) <= 4 * 8
    assert len(stored(place)) <= len(named(place)) + 3 * FAN
    assert len(place.state().rollups) <= 3
    writer = place.writer()
    run_sync(writer._machine.roll_up())
    run_sync(collector(place).collect())
    assert stored(place) == named(place)
    assert stored(place, "rollup") == [rollup.key for rollup in place.state().rollups]
    assert place.snapshot(5 * FAN - 1) == sorted([f"k{at}", 5 * FAN - 1, 1] for at in range(5 * FAN))


def test_a_log_that_takes_several_scans_is_read_whole(place, monkeypatch):
    """Damage: what a version names that fell between two scans is deleted under its readers."""
    busy(place, count=5, rollup_every=100)
    wanted = [each.seqno for each in place.versions["s"]]
    for limit in (2, len(wanted)):
        monkeypatch.setattr(collect, "SCAN_LIMIT", limit)
        assert [each.seqno for each in run_sync(collector(place).versions())] == wanted


def test_collecting_twice_does_nothing_the_second_time(place):
    """Damage: maintenance creates versions for ever."""
    writer = busy(place)
    run_sync(writer._machine.roll_up())
    run_sync(collector(place).collect())
    versions = len(place.versions["s"])
    assert run_sync(collector(place).collect()).nothing
    assert len(place.versions["s"]) == versions


def test_a_survey_says_what_a_collection_would_do_and_does_nothing(place):
    """Damage: a dry run deletes; or it shows something other than what the run does."""
    writer = busy(place, 2 * FAN, grace_ms=None)
    run_sync(writer._machine.roll_up())
    objects, versions = dict(place.objects), list(place.versions["s"])
    dead = run_sync(collector(place).survey())
    assert (place.objects, place.versions["s"]) == (objects, versions)
    done = run_sync(collector(place).collect())
    assert (len(dead.parts), dead.versions) == (done.parts, done.versions) == (2 * FAN, len(versions) - 2)
    assert objects.keys() - place.objects.keys() == {*dead.parts, *(rollup.key for rollup in dead.rollups)}
    assert run_sync(place.client().collector("nowhere")) is None
    assert run_sync(collector(place).survey(1)) is None


def test_what_a_leased_reader_was_given_stays(place):
    """Damage: a job fails, or reads garbage, because its parts were collected while it ran."""
    writer = busy(place, FAN - 1)
    reader = run_sync(place.client().leased_reader("s", place.schema, "s"))
    contents = run_sync(reader.snapshot(FAN - 2))
    for at in range(FAN - 1, 5 * FAN):
        append(place, writer, at)
    run_sync(collector(place).collect())
    assert len(place.rows(contents)) == FAN - 1
    reader.release(contents)
    run_sync(writer._machine.roll_up())
    run_sync(reader.refresh())
    run_sync(reader.beat())
    run_sync(collector(place).collect())
    assert stored(place) == named(place)


def test_a_reader_that_is_gone_holds_nothing_after_its_lease(place):
    """Damage: a crashed reader keeps a shard's garbage for ever."""
    writer = busy(place, FAN - 1)
    run_sync(place.client().leased_reader("s", place.schema, "s"))
    for at in range(FAN - 1, 4 * FAN):
        append(place, writer, at)
    place.clock.now += LEASE_MS + 1
    append(place, writer, 4 * FAN)
    run_sync(writer._machine.roll_up())
    run_sync(collector(place).collect())
    assert place.state().leased == {}
    assert stored(place) == named(place)


def test_parts_outlive_their_versions_by_the_grace_period(place):
    """Damage: a reader that holds nothing, and relies on a day of grace, finds its parts gone after a second."""
    writer = busy(place, 2 * FAN, grace_ms=DELETION_GRACE_MS)
    run_sync(writer._machine.roll_up())
    done = run_sync(collector(place, grace_ms=DELETION_GRACE_MS).collect())
    assert done.parts == 0
    assert len(stored(place)) == 2 * FAN + len(named(place))
    assert len(stored(place, "doomed")) >= 1
    place.clock.now += DELETION_GRACE_MS + 1
    done = run_sync(collector(place, grace_ms=DELETION_GRACE_MS).collect())
    assert done == Collected(parts=2 * FAN)
    assert (stored(place), stored(place, "doomed")) == (named(place), [])


class Failing:
    """Blob and Consensus whose n-th change fails, having happened or not; counts them."""

    def __init__(self, place, fails, happens):
        self._place, self._fails, self._happens = place, fails, happens
        self.changes = 0

    async def _meet(self, call):
        self.changes += 1
        if self.changes == self._fails:
            if self._happens:
                await call()
                raise Indeterminate("the answer was lost")
            raise Determinate("refused")
        return await call()

    async def get(self, key):
        return await self._place.blob.get(key)

    async def list(self, prefix):
        return await self._place.blob.list(prefix)

    async def set(self, key, data):
        return await self._meet(lambda: self._place.blob.set(key, data))

    async def delete(self, key):
        return await self._meet(lambda: self._place.blob.delete(key))

    async def truncate(self, key, seqno):
        return await self._meet(lambda: self._place.consensus.truncate(key, seqno))

    async def scan(self, key, start, limit):
        return await self._place.consensus.scan(key, start, limit)


@pytest.mark.parametrize("grace_ms", [0, 1000])
@pytest.mark.parametrize("happens", [True, False])
def test_a_collection_that_stops_anywhere_is_finished_by_the_next(place, happens, grace_ms):
    """Damage: a crash in the middle leaks what was not deleted, or makes the shard unreadable."""
    for fails in range(1, 60):
        where = type(place)()
        writer = busy(where, 2 * FAN + 3, grace_ms=None)
        run_sync(writer._machine.roll_up())
        broken = Failing(where, fails, happens)
        machine = writer._machine
        try:
            run_sync(Collector(machine, where.clock, CountingIds("x"), broken, broken, grace_ms).collect())
            break
        except (Determinate, Indeterminate):
            assert broken.changes == fails
        assert len(where.snapshot(2 * FAN + 2)) == 2 * FAN + 3
        run_sync(collector(where, grace_ms=grace_ms).collect())
        where.clock.now += 10_000
        run_sync(collector(where, grace_ms=grace_ms).collect())
        assert stored(where) == named(where)
        assert stored(where, "rollup") == [rollup.key for rollup in where.state().rollups]
    assert broken.changes == fails - 1 >= (3 if grace_ms else 2 * FAN)


def test_a_collection_that_a_store_failed_is_finished_after_the_next_commit(place, monkeypatch):
    """Damage: a problem stays in `status` for hundreds of ticks after the store answers again (found by a seed)."""
    writer = busy(place)
    truncate, failures = place.consensus.truncate, []

    async def once(*asked):
        if not failures:
            failures.append(asked)
            raise Determinate("refused")
        return await truncate(*asked)

    monkeypatch.setattr(place.consensus, "truncate", once)
    at = 5 * FAN
    while not failures:
        append(place, writer, at)
        at += 1
    assert "refused" in writer._machine.upkeep.problems["collection"]
    append(place, writer, at)
    assert writer._machine.upkeep.problems == {}


def test_what_dies_after_a_collection_stopped_before_its_end_is_found_by_the_next(place, monkeypatch):
    """Damage: after a crash before the truncation only a sweep deletes later garbage (found by a seed)."""
    writer = busy(place, FAN, grace_ms=None)
    run_sync(writer._machine.roll_up())
    with monkeypatch.context() as stopped:

        async def truncate(*_):
            raise Indeterminate("no answer")

        stopped.setattr(type(place.consensus), "truncate", truncate)
        with pytest.raises(Indeterminate):
            run_sync(collector(place).collect())
    for at in range(FAN, 3 * FAN):
        append(place, writer, at)
    run_sync(writer._machine.roll_up())
    run_sync(collector(place).collect())
    assert stored(place) == named(place)


def test_a_stale_request_of_a_slow_process_harms_nothing(place):
    """Damage: materialize#14580: a collector that was suspended deletes or truncates what is alive now."""
    writer = busy(place, 2 * FAN, grace_ms=None)
    slow = collector(place)
    run_sync(writer._machine.roll_up())
    for at in range(2 * FAN, 4 * FAN):
        append(place, writer, at)
    run_sync(writer._machine.roll_up())
    run_sync(collector(place).collect())
    for to in (1, 5, 30, 10**6):
        run_sync(slow.collect(to))
    assert stored(place) == named(place)
    assert len(place.snapshot(4 * FAN - 1)) == 4 * FAN


def test_a_damaged_old_rollup_stops_neither_appends_nor_collections(place):
    """Damage: a durable append is reported as an error, because of an object that no reader needs."""
    writer = busy(place, 4, rollup_every=10**6)
    place.objects[place.state().rollups[0].key] = b"damaged"
    for at in range(4, 8):
        run_sync(writer._machine.roll_up())
        append(place, writer, at)
    assert place.versions["s"][0].seqno > 1
    assert b"damaged" not in place.objects.values()
    assert len(place.snapshot(7)) == 8


# ---- what was leaked


def leak(place, writer):
    """Write a part that is never appended."""
    prefix = writer.stage_prefix()
    run_sync(place.blob.set(f"{prefix}part", b"leaked"))
    return f"{prefix}part"


def holding(*keys):
    """Return the ``held`` function of a sweep: other objects name ``keys``."""

    async def held(_):
        return keys

    return held


def test_only_parts_that_can_no_longer_be_appended_are_swept(place):
    """Damage: the sweep deletes the part of an append in flight; or leaks stay for ever."""
    writer = busy(place, 3)
    old = leak(place, writer)
    place.clock.now += LEAKED_AFTER_MS
    append(place, writer, 3)
    fresh = leak(place, writer)
    assert run_sync(collector(place).sweep()) == []
    place.clock.now += 1
    append(place, writer, 4)
    assert run_sync(collector(place).sweep()) == [old]
    assert fresh in place.objects
    assert run_sync(collector(place).sweep()) == []
    assert len(place.snapshot(4)) == 5


def test_what_was_swept_can_never_be_appended(place):
    """Damage: a writer that slept for days appends parts that are gone."""
    writer = busy(place, 1)
    staged = place.stage("s", 1, 2, [["late", 1, 1]], inline=0, prefix=writer.stage_prefix())
    place.clock.now += 2 * LEAKED_AFTER_MS
    append(place, writer, 1)
    (key,) = [part.key for part in staged.parts]
    assert run_sync(collector(place).sweep()) == [key]
    run_sync(writer.refresh())
    with pytest.raises(InvalidUsage, match="stage it again"):
        run_sync(writer.compare_and_append([staged], Frontier(2), Frontier(3)))
    assert isinstance(run_sync(writer.compare_and_append([staged], Frontier(1), Frontier(2))), UpperMismatch)


def test_what_only_a_damaged_rollup_showed_is_spared_for_the_grace_period(place):
    """Damage: `fsck --apply` deletes the parts that a reader without a hold got a moment ago (found by a seed)."""
    writer = busy(place, 1, rollup_every=10**6, grace_ms=None)
    staged = place.stage("s", 1, 2, [["k", 1, 1]], inline=0, prefix=writer.stage_prefix())
    run_sync(writer.compare_and_append([staged], Frontier(1), Frontier(2)))
    (part,) = [part.key for part in staged.parts]
    place.clock.now += 2 * LEAKED_AFTER_MS
    append(place, writer, 2)
    (first,) = place.state().rollups
    assert run_sync(run_sync(place.client(place.engine).compactor("s")).whole()) == Merged()
    run_sync(place.writer()._machine.roll_up())
    place.objects[first.key] = b"damaged"
    spared = collector(place, grace_ms=DELETION_GRACE_MS)
    run_sync(spared.collect())
    assert run_sync(spared.sweep()) == [part]
    assert part in place.objects
    assert run_sync(spared.sweep()) == [], "it is on a list"
    place.clock.now += DELETION_GRACE_MS
    run_sync(spared.collect())
    assert part not in place.objects


def test_a_rollup_that_lost_its_race_is_swept(place):
    """Damage: each crash while a rollup is named leaks a copy of the state."""
    writer = busy(place, 20)
    newest = place.state().rollups[-1].seqno
    run_sync(place.blob.set(f"s/rollup/{newest}-r-lost", b"lost"))
    run_sync(place.blob.set(f"s/rollup/{newest + 100}-r-coming", b"coming"))
    assert run_sync(collector(place).sweep()) == [f"s/rollup/{newest}-r-lost"]
    assert writer.state.upper == Frontier(20)


def test_what_another_shard_names_is_not_swept_unasked(place):
    """Damage: the parts of a committed transaction are deleted before it is applied."""
    writer = place.writer(owner="transactions")
    old = leak(place, writer)
    place.clock.now += 2 * LEAKED_AFTER_MS
    run_sync(writer.compare_and_append([], Frontier(0), Frontier(1)))
    with pytest.raises(InvalidUsage, match="say which parts"):
        run_sync(collector(place).sweep())
    assert run_sync(collector(place).sweep(holding(old))) == []
    assert run_sync(collector(place).sweep(holding())) == [old]


# ---- the end


def test_a_shard_that_can_no_longer_be_used_is_emptied_once(place):
    """Damage: a dropped collection keeps its data; or its maintenance never ends."""
    writer = busy(place, 2 * FAN + 3)
    leak(place, writer)
    with pytest.raises(InvalidUsage, match="its since is"):
        run_sync(collector(place).finalize())
    hold = run_sync(place.client().since("s", "h", 1))
    run_sync(hold.downgrade(EMPTY))
    with pytest.raises(InvalidUsage, match="its upper is"):
        run_sync(collector(place).finalize())
    run_sync(writer.refresh())
    run_sync(writer.compare_and_append([], writer.state.upper, EMPTY))
    assert run_sync(collector(place).finalize()) >= 3
    assert (stored(place), stored(place, "doomed")) == ([], [])
    versions = place.versions["s"][-1].seqno
    assert run_sync(collector(place).finalize()) == 0
    assert run_sync(collector(place).collect()).nothing
    assert run_sync(run_sync(place.client(place.engine).compactor("s")).whole()) is None
    assert place.versions["s"][-1].seqno == versions
    state = place.state()
    assert (state.tombstone, state.writers, state.criticals, state.leased) == (True, {}, {}, {})


def test_a_closed_shard_is_still_compacted_and_collected(place):
    """Damage: a sealed collection keeps its many parts for ever."""
    writer = busy(place, 5, grace_ms=None)
    run_sync(writer.compare_and_append([], Frontier(5), EMPTY))
    assert run_sync(run_sync(place.client(place.engine).compactor("s")).whole()) == Merged()
    run_sync(writer.refresh())
    run_sync(writer._machine.roll_up())
    run_sync(collector(place).collect())
    assert len(place.snapshot(10**6)) == 5
    assert stored(place) == named(place)
