"""Each file has one number in the sequence of its source, whichever instance finds it."""

from __future__ import annotations

import asyncio

import pytest
from tests.sources.readers.files.conftest import Directory, names, up_to

from strandline.errors import FencedError
from strandline.persist.handles import records
from strandline.persist.handles.records import consolidate
from strandline.persist.shard.trace import FAN
from strandline.sources.readers.files.sequence import FileVersion


def test_files_of_one_probe_are_numbered_by_name_and_later_ones_after_them(place):
    """Damage: after a restart another file is number 3, so data are read twice and never."""

    async def body():
        reader = await place.reader()
        for name in ("b.csv", "a.csv", "sub/c.csv"):
            place.write(name)
        assert await reader.upstream_frontier() == up_to(3)
        place.write("aa.csv")
        assert await reader.upstream_frontier() == up_to(4)
        wanted = ["a.csv", "b.csv", "sub/c.csv", "aa.csv"]
        assert await names(reader, 4) == wanted
        assert await names(await place.reader(), 4) == wanted
        assert await names(reader, 3, start=1) == wanted[1:3]

    asyncio.run(body())


def test_two_instances_number_new_files_alike(place):
    """Damage: a file is read by both instances under two numbers."""

    async def body():
        first, second = await place.reader(), await place.reader()
        for name in ("a.csv", "b.csv"):
            place.write(name)
        assert await first.upstream_frontier() == up_to(2)
        place.write("0.csv")
        assert await second.upstream_frontier() == up_to(3)
        assert await names(first, 3) == await names(second, 3) == ["a.csv", "b.csv", "0.csv"]

    asyncio.run(body())


def test_a_race_for_numbers_gives_each_file_one(place):
    """Damage: two instances that see a new file at the same moment both number it."""

    async def body():
        first, second = await place.sequence(), await place.sequence()
        a, b, c = (FileVersion(name, 1, 1, 1) for name in "abc")
        await first.register([a, b])
        await second.register([c, b])
        await first.refresh()
        assert [first[i].name for i in range(len(first))] == ["a", "b", "c"]
        assert [second.number_of(name) for name in "abcd"] == [0, 1, 2, None]

    asyncio.run(body())


def test_following_a_sequence_goes_through_what_is_new(place, monkeypatch):
    """Damage: each file that another instance takes costs going through all files there ever were."""
    gone_through = []

    def counted(updates):
        given = list(updates)
        gone_through.append(len(given))
        return consolidate(given)

    monkeypatch.setattr(records, "consolidate", counted)

    async def body():
        writing, following = await place.sequence(), await place.sequence()
        total = 0
        for n in range(200):
            await writing.register([FileVersion(f"{n}", 1, 1, 1)])
            gone_through.clear()
            await following.refresh()
            total += sum(gone_through)
        assert [following[n].name for n in range(200)] == [f"{n}" for n in range(200)]
        assert total <= 200 * FAN, "what was merged meanwhile is gone through once more, and no more than that"

    asyncio.run(body())


def test_a_fenced_instance_numbers_nothing(place):
    """Damage: a zombie decides what its successor's offsets mean."""

    async def body():
        zombie, successor = await place.sequence(epoch=1), await place.sequence(epoch=2)
        with pytest.raises(FencedError):
            await zombie.register([FileVersion("a", 1, 1, 1)])
        await successor.refresh()
        assert len(successor) == 0

    asyncio.run(body())


def numbered(*names):
    """Files of these names, as they were."""
    return [FileVersion(name, 1, 1, 1) for name in names]


def test_files_that_two_coroutines_number_at_once_have_one_number_each(tmp_path):
    """Damage: a file counts twice in this process, and each later one is read under the number of another."""

    async def body():
        shared = await Directory(tmp_path).sequence()
        append = shared._shard.append

        async def slow(*given):
            outcome = await append(*given)
            shared._shard.append = append
            await shared.register(numbered("b"))
            return outcome

        shared._shard.append = slow
        await shared.register(numbered("a"))
        assert [shared[number].name for number in range(len(shared))] == ["a", "b"]

    asyncio.run(body())


def test_a_file_that_was_numbered_while_the_sequence_was_read_has_one_number(tmp_path):
    """Damage: the same; or a sequence that is whole is called damaged."""

    async def body():
        place = Directory(tmp_path)
        other, shared = await place.sequence(), await place.sequence()
        await other.register(numbered("a"))
        contents = shared._shard.contents

        async def slow(**options):
            shared._shard.contents = contents
            await shared.register(numbered("b"))
            return await contents(**options)

        shared._shard.contents = slow
        await shared.refresh()
        assert [shared[number].name for number in range(len(shared))] == ["a", "b"]

    asyncio.run(body())
