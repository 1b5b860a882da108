"""The two stores of a location are recognised as a pair, whatever crashed while they were marked."""

from __future__ import annotations

import asyncio

import pytest

from strandline.errors import ConfigError, CorruptionError
from strandline.persist.handles.location import KEY, Pair, agree, another_consensus, read_mark
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.seal import Kind, seal
from strandline.testing.contracts.consensus_contract import step
from strandline.testing.simulation.crashes import Crash, CrashPlan, PausePlan, Tapped

POINTS_MAX = 40


def settle(blob, consensus, *, writes=True, name="one"):
    """Open the pair."""
    asyncio.run(agree(Pair(blob, consensus, "/data", name), SystemClock(), SystemIds(), writes=writes))


def mark_of(blob):
    """The mark in the blob."""
    return asyncio.run(read_mark(blob, SystemClock()))


def use(blob, consensus):
    """Open the pair and store something, as a version before the mark did not."""
    settle(blob, consensus)
    asyncio.run(blob.set("s-1/part", b"rows"))


def stores_of_an_earlier_version():
    """A location that has objects and states, and neither id nor mark."""
    blob, consensus = MemoryBlob(), MemoryConsensus()
    asyncio.run(blob.set("s-1/part", b"rows"))
    asyncio.run(consensus.compare_and_set(step("catalog", None)))
    return blob, consensus


def test_the_other_consensus_is_refused_and_the_one_it_was_made_with_is_named():
    """Damage: an empty location opens in its place and takes writes, and every view seems to be gone."""
    blob, consensus = MemoryBlob(), MemoryConsensus()
    use(blob, consensus)
    for writes in (True, False):
        other = MemoryConsensus()
        with pytest.raises(ConfigError, match="/data was made with consensus one, and is opened with consensus two"):
            settle(blob, other, writes=writes, name="two")
        assert asyncio.run(other.list_keys()) == []
    settle(blob, consensus, name="one, under the new name of its host")
    assert mark_of(blob).consensus == "one"


def test_a_consensus_is_refused_beside_the_objects_of_another_location():
    """Damage: states name parts that are not there, and all that was stored is called corrupt."""
    consensus = MemoryConsensus()
    use(MemoryBlob(), consensus)
    used_elsewhere = MemoryBlob()
    use(used_elsewhere, MemoryConsensus())
    for blob in (MemoryBlob(), used_elsewhere):
        for writes in (True, False):
            with pytest.raises(ConfigError):
                settle(blob, consensus, writes=writes)
    with pytest.raises(ConfigError, match="consensus one belongs to another location"):
        settle(MemoryBlob(), consensus)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_no_crash_between_the_writes_lets_two_consensuses_share_a_location(after):
    """Damage: a crash while a location is made leaves one that cannot be opened, or that opens as its empty twin."""
    crashed = 0
    for at in range(1, POINTS_MAX):
        for finisher in ("same", "other"):
            blob, consensus, other = MemoryBlob(), MemoryConsensus(), MemoryConsensus()
            plan = CrashPlan(at, after=after)
            try:
                settle(Tapped(plan, "blob", blob), Tapped(plan, "consensus", consensus))
            except Crash:
                crashed += 1
            if finisher == "same":
                settle(blob, consensus)
                with pytest.raises(ConfigError):
                    settle(blob, other)
                continue
            try:
                settle(blob, other)
            except ConfigError:
                settle(blob, consensus)  # the first process had already decided the id
            else:
                with pytest.raises(ConfigError):
                    settle(blob, consensus)
        if not plan.happened:
            assert crashed >= 2 * 6, "reads, the id, the mark and its note are points"
            return
    pytest.fail("it never ends")


def test_two_that_open_a_new_location_at_once_agree_on_its_id():
    """Damage: of two processes that a person starts together, the one that lost writes its mark over the other's."""
    for at in range(1, POINTS_MAX):
        blob, consensus = MemoryBlob(), MemoryConsensus()

        async def meanwhile(blob=blob, consensus=consensus):
            await agree(Pair(blob, consensus, "/data", "one"), SystemClock(), SystemIds(), writes=True)

        plan = PausePlan(at, meanwhile)
        settle(Tapped(plan, "blob", blob), Tapped(plan, "consensus", consensus))
        settle(blob, consensus)
        if len(plan.points) < at:
            return
    pytest.fail("it never ends")


def test_a_location_of_an_earlier_version_is_taken_as_it_is_and_marked_when_it_is_written():
    """Damage: after an upgrade no existing location can be opened."""
    blob, consensus = stores_of_an_earlier_version()
    settle(blob, consensus, writes=False)
    assert mark_of(blob) is None
    settle(blob, consensus)
    assert mark_of(blob).consensus == "one"
    with pytest.raises(ConfigError):
        settle(blob, MemoryConsensus())


def test_objects_of_an_earlier_version_are_not_given_to_an_empty_consensus():
    """Damage: a location that is in use today opens as an empty one."""
    blob, _ = stores_of_an_earlier_version()
    for writes in (True, False):
        with pytest.raises(ConfigError, match="holds objects, and consensus two has no record of them"):
            settle(blob, MemoryConsensus(), writes=writes, name="two")
    assert mark_of(blob) is None


def test_a_reader_writes_no_mark():
    """Damage: opening a copy for reading changes it."""
    blob, consensus = MemoryBlob(), MemoryConsensus()
    settle(blob, consensus, writes=False)
    assert asyncio.run(blob.list("")) == []
    assert asyncio.run(consensus.list_keys()) == []


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptionError),
        (seal(Kind.RECORDS, KEY, b"{}"), CorruptionError),
        (seal(Kind.MARK, KEY, b"{}"), CorruptionError),
        (seal(Kind.MARK, KEY, b'{"id":"l","consensus":"c","format":2}'), ConfigError),
    ],
)
def test_an_unreadable_mark_is_an_error(data, error):
    """Damage: a damaged mark counts as no mark, and the location is marked as another's."""
    blob, consensus = MemoryBlob(), MemoryConsensus()
    use(blob, consensus)
    asyncio.run(blob.delete(KEY))
    asyncio.run(blob.set(KEY, data))
    with pytest.raises(error):
        settle(blob, consensus)


def test_a_consensus_that_is_lost_is_said_to_be_lost():
    """Damage: the operator searches for another consensus, and there is none."""
    blob = MemoryBlob()
    use(blob, MemoryConsensus())
    for writes in (True, False):
        with pytest.raises(ConfigError, match="^location /data has lost its consensus, one: .* from one backup"):
            settle(blob, MemoryConsensus(), writes=writes)


def test_the_message_says_what_to_do():
    """Damage: an operator learns that the pair is wrong, but not which of the two settings to change."""
    blob = MemoryBlob()
    settle(blob, MemoryConsensus(), name="PostgreSQL (db/shop, schema strand)")
    message = str(another_consensus("/data", "consensus.db (SQLite, inside the location)", mark_of(blob)))
    assert message == (
        "location /data was made with consensus PostgreSQL (db/shop, schema strand), and is opened with consensus "
        "consensus.db (SQLite, inside the location), which has no record of it: open it with the consensus that it "
        "was made with"
    )
