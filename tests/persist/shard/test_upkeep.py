"""A failure of upkeep after a commit is noted and retried, and the committer never gets it as an error."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from strandline.errors import CorruptionError, Determinate
from strandline.frontier import Frontier
from strandline.persist.shard.batch import BlobPart
from strandline.persist.shard.machine import LEFT_OUT_MAX, Upkeep
from strandline.persist.shard.patience import Metrics
from strandline.persist.shard.state import Appended
from strandline.persist.shard.trace import FAN, Merged, everything
from strandline.store.protocols import Mismatch, Versioned
from strandline.testing.simulation.kernel import run_sync


class Failing:
    """A merger that raises ``error``, as long as there is one."""

    def __init__(self, place, error):
        self.place = place
        self.error = error
        self.asked = 0

    async def merge(self, contents, request):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return await self.place.engine.merge(contents, request)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [FULL, MemoryError(), RuntimeError("An executor was lost")])
def test_a_merge_that_fails_in_any_way_fails_no_append(place, error):
    """Damage: a durable append is reported as failed, and the caller appends its rows a second time."""
    writer = place.writer(client=place.client(Failing(place, error)))
    for at in range(2 * FAN):
        assert place.append(writer, at, at + 1, [[f"k{at}", at, 1]]) == Appended(Frontier(at + 1))
    assert len(place.snapshot(2 * FAN - 1)) == 2 * FAN


def test_a_shard_whose_merges_fail_can_be_opened(place):
    """Damage: after a full disk or a lost executor a location can no longer be opened."""
    filled = place.writer()
    for at in range(FAN):
        place.append(filled, at, at + 1, [["a", at, 1]])
    assert place.writer(epoch=2, client=place.client(Failing(place, FULL))).epoch == 2


def test_a_job_that_fails_for_its_own_reason_is_tried_less_often_and_caught_up_later(place):
    """Damage: each append runs a Spark job that fails; or the shard is never compacted again."""
    merger = Failing(place, FULL)
    client = place.client(merger)
    writer = place.writer(client=client)
    for at in range(8 * FAN):
        place.append(writer, at, at + 1, [["a", at, 1]])
    assert 1 < merger.asked < FAN
    assert client.metrics.upkeep_failures == merger.asked
    assert "No space left" in writer._machine.upkeep.problems["merge"]
    merger.error = None
    for at in range(8 * FAN, 24 * FAN):
        place.append(writer, at, at + 1, [["a", at, 1]])
    assert len(place.state().batches) < 2 * FAN
    assert writer._machine.upkeep.problems == {}


def test_a_merge_that_is_in_the_shard_is_not_deleted_for_what_failed_after_it(place):
    """Damage: `compact --apply` deletes the parts that the newest version names: they are lost."""
    live = place.writer()
    for at in range(FAN):
        staged = place.stage("s", at, at + 1, [["a", at, 1]], inline=0)
        run_sync(live.compare_and_append([staged], Frontier(at), Frontier(at + 1)))
    compactor = run_sync(place.client(place.engine, rollup_every=4).compactor("s"))
    plan = replace(everything(place.state()), inline_bytes_max=0)
    commit = place.consensus.compare_and_set
    calls = []

    async def lose_the_rollup_to_the_live_writer(request):
        calls.append(request)
        if len(calls) != 2:
            return await commit(request)
        place.consensus.compare_and_set = commit
        await live.compare_and_append([], Frontier(FAN), Frontier(FAN + 1))
        last = place.versions["s"][-1]
        place.versions["s"][-1] = Versioned(last.seqno, last.data[:-1])  # what is read back is damaged
        calls.append(last)
        return Mismatch()

    place.consensus.compare_and_set = lose_the_rollup_to_the_live_writer
    assert run_sync(compactor.carry_out(plan)) == Merged()
    place.versions["s"][-1] = calls[-1]
    named = {part.key for part in place.state().parts if isinstance(part, BlobPart)}
    assert named
    assert named <= set(place.objects)


def test_a_failed_assertion_of_a_job_is_raised():
    """Damage: a bug only moves a counter; the simulation sees no broken law during upkeep."""
    upkeep = Upkeep(Metrics())

    async def wrong():
        raise AssertionError

    upkeep.add("wrong", wrong)
    with pytest.raises(AssertionError):
        run_sync(upkeep.run())


def test_a_job_waits_for_no_other_and_a_store_that_fails_is_asked_at_every_commit():
    """Damage: a damaged part stops rollups and collection too; or a store's minute costs hundreds of commits."""
    upkeep, done = Upkeep(Metrics()), []

    def job(name, error=None):
        async def do():
            done.append(name)
            if error is not None:
                raise error
            return True

        upkeep.add(name, do)

    job("damaged", CorruptionError("damaged"))
    job("refused", Determinate("refused"))
    job("well")
    for _ in range(4):
        run_sync(upkeep.run())
    assert [done.count(name) for name in ("damaged", "refused", "well")] == [2, 4, 4]
    assert upkeep.problems == {"damaged": "damaged", "refused": "refused"}
    for _ in range(4 * LEFT_OUT_MAX):
        run_sync(upkeep.run())
    asked = done.count("damaged")
    for _ in range(LEFT_OUT_MAX + 1):
        run_sync(upkeep.run())
    assert done.count("damaged") == asked + 1


def test_a_problem_is_reported_until_the_job_has_checked_again():
    """Damage: `status` shows a problem of a collection only for one commit in hundreds."""
    upkeep, answers = Upkeep(Metrics()), iter([CorruptionError("damaged"), False, True])

    async def do():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    upkeep.add("collection", do)
    reported = []
    for _ in range(4):  # the second is left out
        run_sync(upkeep.run())
        reported.append(upkeep.problems.get("collection"))
    assert reported == ["damaged", "damaged", "damaged", None]


def test_a_job_may_be_added_while_the_others_are_done():
    """Damage: a commit fails because another task opened a writer meanwhile (found by a seed)."""
    upkeep, done = Upkeep(Metrics()), []

    async def last():
        done.append("last")

    async def first():
        upkeep.add("last", last)
        upkeep.add("first", last)

    upkeep.add("first", first)
    for _ in range(2):
        run_sync(upkeep.run())
    assert done == ["last"]
