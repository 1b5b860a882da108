"""The Delta reader's collection is at every time what the table was at some version."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64
from table_place import SCHEMA, TablePlace, read, table

from strandline.algebra.schema import DIFF, Column, Schema
from strandline.errors import DefinitionError, SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.problem import cases_of
from strandline.sources.readers.delta.kind import KIND
from strandline.sources.readers.delta.log import DeltaOptions
from strandline.sources.readers.delta.reader import PARTITION
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.secret import revealed
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.testing.lists.list_engine import listed

FEED = {"delta.enableChangeDataFeed": "true"}


class Lake(TablePlace):
    """A Delta table, a location, and readers of it there."""

    def __init__(self, root, schema=SCHEMA, **options):
        self.root = root / "a table"
        super().__init__(KIND, {"path": str(self.root), **options}, schema)

    def create(self, configuration=None, partition_by=None, rows=None):
        rows = table([]) if rows is None else rows
        write_deltalake(str(self.root), rows, configuration=configuration, partition_by=partition_by)
        return self

    def append(self, rows, **options):
        write_deltalake(str(self.root), rows, mode="append", **options)

    def delta(self):
        return DeltaTable(str(self.root))

    async def produce(self, *, undecodable=False):
        self.append(self.fresh())

    async def break_promise(self):
        shutil.rmtree(self.root)
        self.create()
        for _ in range(5):
            await self.produce()


@pytest.fixture
def lake(tmp_path):
    """A place for a table."""
    return Lake(tmp_path)


def up_to(version):
    """The offsets that cover the versions up to this one."""
    return Offsets({PARTITION: version + 1})


def contents(lake, version):
    """What deltalake says that the table holds at a version."""
    rows = DeltaTable(str(lake.root), version=version).to_pyarrow_table().select(list(lake.schema.names)).to_pylist()
    return Counter(tuple(row.values()) for row in rows)


class TestDeltaReader(SharedReaderContract):
    @pytest.fixture(params=["plain", "with a change feed", "partitioned"])
    def place(self, tmp_path, request):
        feed = FEED if request.param == "with a change feed" else None
        return Lake(tmp_path).create(feed, ["kind"] if request.param == "partitioned" else None)

    def test_locating_errors_leaves_the_good_rows_as_they_are(self):
        pytest.skip("a file of a table is read as a whole or not at all: no message of it is undecodable")


async def follow(lake, steps):
    """Make steps, and hold that every slice between any two versions is their difference."""
    first = (await (await lake.reader()).upstream_frontier())[PARTITION] - 1
    for step in steps:
        step()
    reader = await lake.reader()
    last = (await reader.upstream_frontier())[PARTITION] - 1
    assert last - first >= len(steps)
    for version in range(first, last + 1):
        assert await read(reader, NOTHING_READ, up_to(version)) == contents(lake, version)
        for earlier in range(first, version):
            wanted = contents(lake, version)
            wanted.subtract(contents(lake, earlier))
            found = await read(reader, up_to(earlier), up_to(version))
            assert found == Counter({row: diff for row, diff in wanted.items() if diff}), (earlier, version)


@pytest.mark.parametrize("feed", [None, FEED])
@pytest.mark.parametrize("partition_by", [None, ["kind"]])
def test_every_slice_is_the_difference_of_two_versions(lake, feed, partition_by):
    """Damage: a row that the table has is missing, or one that it has not is there."""
    lake.create(feed, partition_by, pa.concat_tables([table([1, 2, 2, 3]), table([3, 4], "b é%/"), table([5], None)]))
    merged = table([2, 77, 78], "c")

    def merge():
        matching = lake.delta().merge(merged, "t.id = s.id", source_alias="s", target_alias="t")
        matching.when_matched_update_all().when_not_matched_insert_all().execute()

    asyncio.run(
        follow(
            lake,
            [
                lambda: lake.append(table([10, 11, 11])),
                lambda: lake.delta().update({"id": "id + 100"}, predicate="id = 2"),
                lambda: lake.append(table([2], "a")),
                lambda: lake.delta().delete("id = 11"),
                lambda: lake.delta().optimize.compact() and None,
                merge,
                lambda: lake.delta().delete("kind = 'a'"),
                lambda: write_deltalake(str(lake.root), table([1, 9], "z"), mode="overwrite"),
                lambda: lake.delta().restore(1),
                lambda: lake.append(table([4])),
            ],
        )
    )


def test_rearranging_files_changes_nothing_and_reads_nothing(lake):
    """Damage: each OPTIMIZE of a terabyte is a terabyte of withdrawals and insertions."""
    lake.create()
    for n in range(4):
        lake.append(table([n]))

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        lake.delta().optimize.compact()
        lake.delta().create_checkpoint()
        after = await reader.upstream_frontier()
        assert after != before
        assert listed(await reader.read([Slice(7, before, after)], table="", locate=False)).rows == ()
        assert reader.likely_small([])

    asyncio.run(body())


def test_a_file_that_came_and_went_is_not_needed(lake):
    """Damage: after a short outage a source stops for a file that no reader needs."""
    lake.create()

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        lake.append(table([1]))
        lake.delta().delete("id = 1")
        lake.append(table([2]))
        vacuum(lake)
        return await read(reader, before, await reader.upstream_frontier())

    assert asyncio.run(body()) == {(2, "a"): 1}


def vacuum(lake):
    """Delete what the newest version does not need."""
    lake.delta().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def test_a_vacuumed_file_is_an_error_that_names_it_and_its_version(lake):
    """Damage: rows are skipped silently where VACUUM overtakes the source."""
    lake.create()

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        lake.append(table([1]))
        between = await reader.upstream_frontier()
        lake.delta().delete("id = 1")
        vacuum(lake)
        after = await reader.upstream_frontier()
        for slices in ([Slice(7, before, between)], [Slice(8, between, after)]):
            with pytest.raises(SourceError, match=r"'part-.*parquet' of version [12] is gone \(vacuumed\)"):
                await reader.read(slices, table="", locate=False)

    asyncio.run(body())


def test_a_log_that_does_not_reach_back_is_an_error_that_names_the_version(lake):
    """Damage: versions are skipped silently where log retention overtakes the source."""
    lake.create()

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        for n in range(3):
            lake.append(table([n]))
        after = await reader.upstream_frontier()
        lake.delta().create_checkpoint()
        for version in (0, 1):
            (lake.root / f"_delta_log/{version:020}.json").unlink()
        with pytest.raises(SourceError, match="its log no longer has version 1, which this source has not read"):
            await reader.read([Slice(7, before, after)], table="", locate=False)
        restarted = await lake.reader()
        await restarted.commit(before)
        with pytest.raises(SourceError, match="its log no longer has version 1"):
            await restarted.upstream_frontier()
        ahead = await lake.reader()
        await ahead.commit(up_to(2))
        assert await ahead.upstream_frontier() == after
        assert await read(ahead, up_to(2), after) == {(2, "a"): 1}
        with pytest.raises(SourceError, match="its log no longer has version 0"):
            await ahead.read([Slice(7, NOTHING_READ, up_to(0))], table="", locate=False)

    asyncio.run(body())


def test_a_table_that_was_created_again_is_another_one(lake):
    """Damage: the rows of another table are mixed with those of the first one."""
    lake.create()

    async def body():
        reader = await lake.reader()
        await reader.upstream_frontier()
        await lake.break_promise()
        for each in (reader, await lake.reader()):
            with pytest.raises(SourceError, match="is another table: its id was .* and is .*; it was dropped"):
                await each.upstream_frontier()

    asyncio.run(body())


def test_a_table_that_was_put_back_to_an_older_version_stops_the_source(lake):
    """Damage: versions that are written again are taken for those that were read."""
    lake.create()
    lake.append(table([1]))
    shutil.copytree(lake.root, lake.root.parent / "saved")
    lake.append(table([2]))

    async def body():
        reader = await lake.reader()
        durable = await reader.upstream_frontier()
        shutil.rmtree(lake.root)
        shutil.copytree(lake.root.parent / "saved", lake.root)
        other = await lake.reader()
        await other.commit(durable)
        for each in (reader, other):
            with pytest.raises(SourceError, match="went back: version 2 was read, and its newest one is 1"):
                await each.upstream_frontier()

    asyncio.run(body())


def test_a_column_that_is_added_is_ignored_unless_it_is_declared(tmp_path):
    """Damage: an upstream that only grows stops the source, or shifts its columns."""
    wide = pa.table({"id": pa.array([7], pa.int64()), "kind": ["w"], "more": pa.array([1.5])})
    lake = Lake(tmp_path).create(rows=table([1]))

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        lake.append(wide, schema_mode="merge")
        assert await read(reader, before, await reader.upstream_frontier()) == {(7, "w"): 1}
        lake.schema = Schema((*SCHEMA.columns, Column("MORE", "double")))
        assert await read(await lake.reader(), NOTHING_READ, up_to(1)) == {(1, "a", None): 1, (7, "w", 1.5): 1}

    asyncio.run(body())


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (pa.table({"id": pa.array([7], pa.int64())}), "it has no column `kind`; it has id"),
        (pa.table({"id": ["7"], "kind": ["w"]}), "column `id` is string there, which bigint does not hold"),
    ],
)
def test_a_column_that_is_dropped_or_of_another_type_stops_the_source_behind_the_versions_before(lake, after, message):
    """Damage: rows of a column that is no more are read as something else, or good versions are not read."""
    lake.create(rows=table([1]))

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        lake.append(table([2]))
        write_deltalake(str(lake.root), after, mode="overwrite", schema_mode="overwrite")
        lake.append(after)
        good = await reader.upstream_frontier()
        assert good == up_to(1)
        (notice,) = reader.notices()
        assert message in notice
        assert cases_of(notice), "its ways out are known"
        assert await read(reader, before, good) == {(2, "a"): 1}
        await reader.commit(good)
        restarted = await lake.reader()
        await restarted.commit(good)
        for each, version in ((reader, 2), (restarted, 3)):
            with pytest.raises(SourceError, match=f"cannot be read at version {version}: {message}"):
                await each.upstream_frontier()
        with pytest.raises(SourceError, match=f"cannot be read at version 2: {message}"):
            await reader.read([Slice(7, good, up_to(3))], table="", locate=False)

    asyncio.run(body())


def test_types_that_hold_every_value_are_read_and_others_are_refused(tmp_path):
    """Damage: an overflow in the middle of a table, days after the source was defined."""
    rows = pa.table({"i": pa.array([1], pa.int32()), "d": pa.array([Decimal("1.5")], pa.decimal128(5, 1))})
    lake = Lake(tmp_path).create(rows=rows)

    async def ask(*types):
        lake.schema = Schema(tuple(Column(*each) for each in types))
        reader = await lake.reader()
        return await read(reader, NOTHING_READ, await reader.upstream_frontier())

    assert asyncio.run(ask(("i", "bigint"), ("d", "decimal(10,2)"))) == {(1, Decimal("1.50")): 1}
    assert asyncio.run(ask(("i", "decimal(12,2)"))) == {(Decimal("1.00"),): 1}
    assert asyncio.run(ask(("i", "double"))) == {(1.0,): 1}
    for refused in (("i", "smallint"), ("i", "string"), ("d", "decimal(5,2)"), ("d", "double"), ("x", "int")):
        with pytest.raises(SourceError, match="cannot be read at version 0"):
            asyncio.run(ask(refused))


def test_partition_values_of_every_type_are_read_from_the_log(tmp_path):
    """Damage: a partition column is NULL, or a day off."""
    kinds = {
        "i": ("int", pa.array([7, None], pa.int32()), 7),
        "s": ("string", pa.array(["a/b c%", None]), "a/b c%"),
        "d": ("date", pa.array([date(2024, 2, 29), None]), date(2024, 2, 29)),
        "b": ("boolean", pa.array([True, None]), True),
        "m": ("decimal(6,2)", pa.array([Decimal("1.25"), None], pa.decimal128(6, 2)), Decimal("1.25")),
        "t": ("timestamp", pa.array([datetime(2024, 1, 2, 3, 4, 5, 678, UTC), None], pa.timestamp("us", "UTC")), None),
        "n": ("timestamp_ntz", pa.array([datetime(2024, 1, 2, 3, 4, 5), None], pa.timestamp("us")), None),  # noqa: DTZ001
        "f": ("double", pa.array([0.1, None]), 0.1),
    }
    for name, (kind, values, wanted) in kinds.items():
        lake = Lake(tmp_path / name, Schema((Column("id", "bigint"), Column(name, kind))))
        rows = pa.table({"id": pa.array([1, 2], pa.int64()), name: values})
        lake.create(partition_by=[name], rows=rows)
        lake.append(rows)

        async def body(lake=lake):
            reader = await lake.reader()
            await reader.upstream_frontier()
            snapshot = await read(reader, NOTHING_READ, up_to(0))
            return snapshot, await read(reader, up_to(0), up_to(1))

        snapshot, changes = asyncio.run(body())
        value = values[0].as_py() if wanted is None else wanted
        assert snapshot == changes == {(1, value): 1, (2, None): 1}, name


def edit(lake, version, change):
    """Rewrite a commit, as another writer would have written it: ``change`` takes and returns its actions."""
    path = lake.root / f"_delta_log/{version:020}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(action) + "\n" for action in change(actions)))


def test_features_that_are_not_understood_are_refused_by_name(lake):
    """Damage: a table is read as if a feature were not there: wrong rows."""
    lake.create()
    new = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["odd"], "readerFeatures": ["odd"]}

    async def body():
        reader = await lake.reader()
        await reader.upstream_frontier()
        lake.append(table([1]))
        edit(lake, 1, lambda actions: [{"protocol": new}, *actions])
        good = await reader.upstream_frontier()
        assert good == up_to(0)
        await reader.commit(good)
        with pytest.raises(SourceError, match="version 1: its protocol has the feature 'odd', which this reader does"):
            await reader.upstream_frontier()
        with pytest.raises(SourceError, match="odd"):
            await (await lake.reader()).upstream_frontier()

    asyncio.run(body())


def test_a_removal_of_which_the_log_says_little_is_completed(lake):
    """Damage: rows of a partitioned table that another writer removes stay, or go with the wrong value."""
    lake.create(partition_by=["kind"], rows=pa.concat_tables([table([1]), table([2], "b")]))
    lake.delta().delete("kind = 'b'")
    edit(
        lake,
        1,
        lambda actions: [
            {"remove": {name: each["remove"][name] for name in ("path", "dataChange", "deletionTimestamp")}}
            if "remove" in each
            else each
            for each in actions
        ],
    )

    async def body():
        reader = await lake.reader()
        await reader.upstream_frontier()
        return await read(reader, up_to(0), up_to(1))

    assert asyncio.run(body()) == {(2, "b"): -1}


def test_a_file_that_is_not_what_the_log_says_is_an_error(lake):
    """Damage: a file that was written over is read as the table's."""
    lake.create(rows=table([1]))
    (path,) = lake.root.glob("*.parquet")
    pq.write_table(table(range(1000)), path)

    async def body():
        reader = await lake.reader()
        await reader.read([Slice(7, NOTHING_READ, await reader.upstream_frontier())], table="", locate=False)

    with pytest.raises(SourceError, match=r"of version 0 has \d+ bytes, not \d+"):
        asyncio.run(body())


def test_an_absent_table_is_an_error_and_an_absent_server_a_pause(tmp_path):
    """Damage: an operator waits for a table that will never be there, or drops a source for a pause of the network."""

    async def ask(lake):
        await (await lake.reader()).upstream_frontier()

    with pytest.raises(SourceError, match=r"Delta table '.*' does not exist; create it"):
        asyncio.run(ask(Lake(tmp_path)))
    away = Lake(tmp_path, endpoint="http://127.0.0.1:9", region="x", access_key_id="a", secret_access_key="hush")
    away.options["path"] = "s3://bucket/table"
    with pytest.raises(Unavailable, match="does not answer") as told:
        asyncio.run(ask(away))
    assert "hush" not in str(told.value)


def test_options_do_not_show_their_secrets(tmp_path):
    """Damage: a key in a log file."""
    given = understood("s", DeltaOptions, {"path": "s3://b/t", "secret_access_key": "hush"})
    assert "hush" not in repr(given)
    assert "hush" not in repr(given.storage)
    with pytest.raises(DefinitionError, match="its scheme can be"):
        understood("s", DeltaOptions, {"path": "ftp://b/t"})


def test_the_store_gets_what_deltalake_takes():
    """Damage: a bucket that wants a role, or a container that an application logs in to, cannot be read."""
    given = understood(
        "s",
        DeltaOptions,
        {
            "path": "az://c/t",
            "tenant_id": "t",
            "client_id": "i",
            "client_secret": "env:S",
            "client_properties": '{"timeout": "9s", "azure_storage_tenant_id": "not this one"}',
        },
    )
    assert revealed(given.storage) == {
        "timeout": "9s",
        "azure_storage_tenant_id": "t",
        "azure_storage_client_id": "i",
        "azure_storage_client_secret": "env:S",
    }


Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def vector(rows):
    """A deletion vector of these rows, as a writer puts it into the log itself."""
    data = struct.pack("<i", 1681511377) + BitMap64(rows).serialize()
    padded = data + bytes(-len(data) % 4)
    text = ""
    for (word,) in struct.iter_unpack(">I", padded):
        text += "".join(Z85[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


def write_commit(lake, version, *actions):
    """Commit actions as another writer would."""
    path = lake.root / f"_delta_log/{version:020}.json"
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_rows_that_a_deletion_vector_deletes_are_withdrawn_and_come_back_with_it(lake):
    """Damage: deleted rows of a table with deletion vectors stay, or all rows of a file go for one."""
    lake.create(rows=table(range(10)))
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    actions = [json.loads(line) for line in (lake.root / f"_delta_log/{0:020}.json").read_text().splitlines()]
    (added,) = [action["add"] for action in actions if "add" in action]
    write_commit(lake, 0, *({"protocol": protocol} if "protocol" in action else action for action in actions))
    known = {name: added[name] for name in ("path", "partitionValues", "size")}
    vectors = [None, vector([2]), vector([2, 3, 9]), vector([3]), None]
    for version in range(1, len(vectors)):
        before, after = ({"deletionVector": v} if v else {} for v in vectors[version - 1 : version + 1])
        removed = {
            "remove": {**known, "dataChange": True, "deletionTimestamp": 1, "extendedFileMetadata": True, **before}
        }
        write_commit(lake, version, removed, {"add": {**added, **after}})

    async def body():
        reader = await lake.reader()
        assert await reader.upstream_frontier() == up_to(4)
        held = [set(range(10)), set(range(10)) - {2}, set(range(10)) - {2, 3, 9}, set(range(10)) - {3}, set(range(10))]
        for last in range(5):
            snapshot = await read(reader, NOTHING_READ, up_to(last))
            assert snapshot == Counter({(n, "a"): 1 for n in held[last]})
            for first in range(last):
                rows = listed(await reader.read([Slice(7, up_to(first), up_to(last))], table="", locate=False)).rows
                wanted = dict.fromkeys(held[last] - held[first], 1) | dict.fromkeys(held[first] - held[last], -1)
                assert len(rows) == len(wanted), "no row is touched that stays as it is"
                assert {row["id"]: row[DIFF] for row in rows} == wanted

    asyncio.run(body())


def test_columns_that_are_mapped_are_found_by_their_names_in_the_files(lake):
    """Damage: after a rename upstream a column is NULL."""
    lake.create(rows=pa.table({"col-1": pa.array([1], pa.int64()), "col-2": ["x"]}))

    def mapped(mode, *names):
        fields = [
            {"name": name, "type": kind, "nullable": True}
            | {"metadata": {"delta.columnMapping.id": n, "delta.columnMapping.physicalName": f"col-{n}"}}
            for n, name, kind in names
        ]
        return lambda actions: [
            {
                "metaData": {
                    **action["metaData"],
                    "schemaString": json.dumps({"type": "struct", "fields": fields}),
                    "configuration": {"delta.columnMapping.mode": mode},
                }
            }
            if "metaData" in action
            else {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
            if "protocol" in action
            else action
            for action in actions
        ]

    async def ask():
        reader = await lake.reader()
        return await read(reader, NOTHING_READ, await reader.upstream_frontier())

    edit(lake, 0, mapped("name", (1, "id", "long"), (2, "kind", "string")))
    assert asyncio.run(ask()) == {(1, "x"): 1}
    edit(lake, 0, mapped("name", (2, "kind", "string"), (1, "renamed", "long")))
    with pytest.raises(SourceError, match="it has no column `id`; it has kind, renamed"):
        asyncio.run(ask())
    edit(lake, 0, mapped("id", (1, "id", "long"), (2, "kind", "string")))
    with pytest.raises(SourceError, match="its columns are mapped by id, which this reader does not understand"):
        asyncio.run(ask())
