"""A file that is gone, or was changed for good, is passed over: the source goes on, and what is durable stays."""

from __future__ import annotations

import asyncio

import pytest
from tests.sources.readers.files.conftest import names, up_to

from strandline.errors import SourceError


@pytest.mark.parametrize("durable", [False, True], ids=["before it is durable", "after"])
@pytest.mark.parametrize("harm", ["vanished", "changed"])
def test_a_source_goes_on_without_a_file_that_is_passed_over(place, harm, durable):
    """Damage: a file that is deleted upstream stops its source for ever; or the next one is no longer watched."""

    async def body():
        reader = await place.reader()
        for name in ("a.csv", "b.csv"):
            place.write(name)
        await reader.upstream_frontier()
        await reader.commit(up_to(2 * durable))
        if harm == "vanished":
            (place.root / "a.csv").unlink()
        else:
            place.write("a.csv", "2\n3\n", age_ms=5_000)
        with pytest.raises(SourceError, match=f"{harm}.*or go on without it: strandline source skip s --file a.csv"):
            await reader.upstream_frontier()
        await (await place.sequence()).pass_over(0)
        place.write("c.csv")
        frontier = await reader.upstream_frontier()
        assert frontier == up_to(4), "the note has a number"
        assert await names(reader, 4) == ["b.csv", "c.csv"]
        assert await names(reader, 1) == []
        (place.root / "b.csv").unlink()
        with pytest.raises(SourceError, match=r"'b\.csv' vanished"):
            await reader.upstream_frontier()

    asyncio.run(body())


def test_a_file_that_is_passed_over_stays_so_whatever_comes_under_its_name(place):
    """Damage: the next process stops for the same file again; or takes another one under its name, and looks at it."""

    async def body():
        reader = await place.reader()
        place.write("a.csv")
        await reader.upstream_frontier()
        (place.root / "a.csv").unlink()
        await (await place.sequence()).pass_over(0)
        await reader.upstream_frontier()
        for text in ("1\n", "7\n"):
            place.write("a.csv", text)
            for each in (reader, await place.reader()):
                assert await each.upstream_frontier() == up_to(2)
                assert await names(each, 2) == []

    asyncio.run(body())


def test_a_file_is_passed_over_once_however_often_it_is_said(place):
    """Damage: a command that is repeated takes a number each time; or one beside it takes the same number."""

    async def body():
        place.write("a.csv")
        reader = await place.reader()
        await reader.upstream_frontier()
        first, second = await place.sequence(), await place.sequence()
        for each in (first, second, first):  # the second does not know yet of what the first noted
            await each.pass_over(0)
        again = await place.sequence()
        assert again.passed_over == {0}
        place.write("b.csv")
        frontier = await reader.upstream_frontier()
        assert await names(reader, len(await place.sequence())) == ["b.csv"]
        assert frontier == up_to(len(await place.sequence()))

    asyncio.run(body())
