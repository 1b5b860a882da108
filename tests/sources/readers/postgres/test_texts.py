"""What a real server writes of values, in a snapshot and in changes: arrays with a delimiter, bytes of no encoding."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from tests.sources.readers.postgres.conftest import SCHEMA, Place, after, begin, rows

from strandline.algebra.schema import DIFF, ERROR, Column, Schema
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import contents
from strandline.sources.ingest import Ingestion
from strandline.sources.remap import RemapShard
from strandline.sources.steps import Advanced, Idle, OutputShard
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import listed

pytestmark = pytest.mark.server


@pytest.fixture
def placed():
    """A function that takes a place, which is closed after the test, and returns it."""
    places = []
    yield lambda place: places.append(place) or place
    for place in places:
        asyncio.run(place.close())


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_an_array_is_split_where_its_type_says(database, placed, identity):
    """Damage: two boxes are six elements, none of which is a box."""
    place = placed(Place(database))
    place.table = "public.b"
    kinds = {
        "boxes": "box[]", "shapes": "shape[]", "named": "shapes", "bars": "bar[]", "ints": "int[]", "words": "text[]",
    }  # fmt: skip
    place.schemas = {place.table: Schema((Column("id", "int"), *(Column(name, "array<string>") for name in kinds)))}
    database.run(
        "CREATE DOMAIN shape AS box",
        "CREATE DOMAIN shapes AS box[]",
        "CREATE TYPE bar",
        "CREATE FUNCTION bar_in(cstring) RETURNS bar LANGUAGE internal IMMUTABLE STRICT AS 'textin'",
        "CREATE FUNCTION bar_out(bar) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'",
        "CREATE TYPE bar (INPUT = bar_in, OUTPUT = bar_out, LIKE = text, DELIMITER = '|')",
        f"CREATE TABLE b (id int PRIMARY KEY, {', '.join(f'{name} {kind}' for name, kind in kinds.items())})",
        f"ALTER TABLE b REPLICA IDENTITY {identity}",
        "ALTER PUBLICATION p ADD TABLE b",
    )
    boxes = ["(3,4),(1,2)", "(7,8),(5,6)"]
    written = {
        "boxes": boxes, "shapes": boxes, "named": [*boxes, None], "bars": ["a,b", "c|d", "e;f", "NULL", "", None],
        "ints": ["1", None], "words": ["a;b", "c,d", "e|f", 'g"h'],
    }  # fmt: skip

    def insert(key):
        texts = (
            f"ARRAY[{', '.join('NULL' if each is None else repr(each) for each in written[name])}]::text[]::{kind}"
            for name, kind in kinds.items()
        )
        database.run(f"INSERT INTO b VALUES ({key}, {', '.join(texts)})")

    async def body():
        insert(1)
        reader = await place.reader()
        first = await begin(place, reader)
        insert(2)
        database.run("DELETE FROM b WHERE id = 1")
        copied = await rows(place, reader, first)
        came, went = await rows(place, reader, await after(reader, first.upper))
        for row in (copied[0], came, *([went] if identity == "FULL" else [])):
            assert {name: row[name] for name in kinds} == written

    asyncio.run(body())


@pytest.fixture
def unconverted(postgres_server):
    """A database whose encoding converts nothing and checks nothing."""
    with postgres_server.database("SQL_ASCII") as made:
        yield made


LATIN = r"E'gr\xfcn'"
"""A text of Latin 1, as SQL."""
UTF8 = r"E'gr\xc3\xbcn'"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_bytes_that_are_no_utf8_are_an_error_of_their_row_until_it_is_corrected(unconverted, placed, identity):
    """Damage: one value that an old program wrote in Latin 1 stops all tables of the source."""
    place = placed(Place(unconverted, identity))
    unconverted.run(f"INSERT INTO t VALUES (1, '1', {LATIN}), (2, '2', {UTF8})")

    async def body():
        data, ingestion = await ingesting(place)

        async def tick(time, *statements):
            if statements:
                unconverted.run(*statements)
            assert isinstance(await ingestion.tick(time), Advanced), ingestion.status.stalled
            assert isinstance(await ingestion.catch_up(place.table), Idle), ingestion.status.stalled
            return await held(place, data)

        good, bad = await tick(1)
        assert good == {(0, "there at first"), (2, "grün")}
        assert bad == ["column 'v': it is not UTF-8"]
        good, bad = await tick(2, f"INSERT INTO t VALUES (3, '3', {LATIN})", f"UPDATE t SET v = {LATIN} WHERE id = 2")
        assert (good, len(bad)) == ({(0, "there at first")}, 3)
        good, bad = await tick(3, "UPDATE t SET v = 'corrected' WHERE id IN (1, 2)", "DELETE FROM t WHERE id = 3")
        assert (good, bad) == ({(0, "there at first"), (1, "corrected"), (2, "corrected")}, [])

    asyncio.run(body())


def test_a_name_that_is_no_utf8_stops_nothing(unconverted, placed):
    """Damage: a table of the publication that is not read stops those that are."""
    place = placed(Place(unconverted))

    def run(statement):
        unconverted.run(f"DO $$ BEGIN EXECUTE format('{statement}', {LATIN}); END $$")

    run("CREATE TABLE %I (id int PRIMARY KEY)")
    run("ALTER PUBLICATION p ADD TABLE %I")

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        await rows(place, reader, first)
        run("INSERT INTO %I VALUES (1)")
        unconverted.run("INSERT INTO t VALUES (5, '5', 'a')")
        assert [row["id"] for row in await rows(place, reader, await after(reader, first.upper))] == [5]

    asyncio.run(body())


async def ingesting(place):
    """The ingestion of a place's table, and the handle that holds what is durable of it."""
    client = PersistClient(HandClock(), CountingIds("ingesting"), place.blob, place.consensus)
    remap = await RemapShard.open(await client.records("remap", 1), 1)
    data = await client.writer(place.table, 1, schema=SCHEMA.ddl)
    output = OutputShard(place.table, SCHEMA, data)
    return data, await Ingestion.open(client.clock, place.engine, await place.reader(), remap, [output], name="s")


async def held(place, data):
    """The rows that are durable, and the reasons of the errors."""
    sums = Counter()
    for half in (Half.OK, Half.ERR):
        wanted = contents(data.state, SCHEMA, 0, data.state.upper.at, advance=0, half=half)
        for row in listed(await place.engine.read(wanted)).rows:
            sums[row[ERROR] if half is Half.ERR else (row["id"], row["v"])] += row[DIFF]
    assert all(count in {0, 1} for count in sums.values()), sums
    there = [each for each, count in sums.items() if count]
    return (
        {each for each in there if isinstance(each, tuple)},
        [json.loads(each)["reason"] for each in there if isinstance(each, str)],
    )
