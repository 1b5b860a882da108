"""The Iceberg reader's collection is at every time what the branch was at some snapshot."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_lake import IcebergLake, commit_deletes, delete_positions
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as Stored
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from table_place import SCHEMA, TablePlace, read, table

from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError, SourceError
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.sources.readers.iceberg.kind import KIND
from strandline.sources.readers.iceberg.options import IcebergOptions
from strandline.sources.readers.iceberg.reader import PARTITION
from strandline.sources.readers.iceberg.table import StoredTable
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryConsensus
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.testing.lists.list_engine import listed

STORED = Stored(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))


class Lake(IcebergLake, TablePlace):
    """An Iceberg table, a location, and readers of it there."""

    def __init__(self, root, schema=SCHEMA, **options):
        IcebergLake.__init__(self, root / "a table")
        TablePlace.__init__(self, KIND, {"path": str(self.root), **options}, schema)

    def create(self, rows=None, partitioned=False, **properties):
        rows = table([]) if rows is None else rows
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind")) if partitioned else None
        schema = STORED if rows.schema == table([]).schema else None
        super().create(rows, schema=schema, partition_spec=spec, **properties)
        return self

    async def produce(self, *, undecodable=False):
        self.stored().append(self.fresh())

    async def break_promise(self):
        shutil.rmtree(self.root)
        self.create()
        for _ in range(5):
            await self.produce()


@pytest.fixture
def lake(tmp_path):
    """A place for a table."""
    return Lake(tmp_path)


def up_to(number):
    """The offsets that cover the snapshots up to this sequence number."""
    return Offsets({PARTITION: number})


def contents(lake, number):
    """What pyiceberg says that the table holds at a snapshot."""
    stored = lake.stored()
    (snapshot,) = (each for each in stored.snapshots() if each.sequence_number == number)
    rows = stored.scan(snapshot_id=snapshot.snapshot_id).to_arrow().select(list(lake.schema.names)).to_pylist()
    return Counter(tuple(row.values()) for row in rows)


class TestIcebergReader(SharedReaderContract):
    @pytest.fixture(params=[False, True])
    def place(self, tmp_path, request):
        return Lake(tmp_path).create(partitioned=request.param)

    def test_locating_errors_leaves_the_good_rows_as_they_are(self):
        pytest.skip("a file of a table is read as a whole or not at all: no message of it is undecodable")


async def every_slice(lake):
    """Hold that every slice between any two snapshots is their difference."""
    reader = await lake.reader()
    last = (await reader.upstream_frontier())[PARTITION]
    numbers = sorted(each.sequence_number for each in lake.stored().snapshots())
    assert numbers[-1] == last
    for number in numbers:
        assert await read(reader, NOTHING_READ, up_to(number)) == contents(lake, number)
        for earlier in numbers[: numbers.index(number)]:
            wanted = contents(lake, number)
            wanted.subtract(contents(lake, earlier))
            found = await read(reader, up_to(earlier), up_to(number))
            assert found == Counter({row: diff for row, diff in wanted.items() if diff}), (earlier, number)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("merging", ["true", "false"])
def test_every_slice_is_the_difference_of_two_snapshots(lake, partitioned, merging):
    """Damage: a row that the table has is missing, or one that it has not is there."""
    rows = pa.concat_tables([table([1, 2, 2, 3]), table([3, 4], "b é%/"), table([5], None)])
    lake.create(
        rows, partitioned, **{"commit.manifest-merge.enabled": merging, "commit.manifest.min-count-to-merge": "2"}
    )
    lake.stored().append(table([10, 11, 11]))
    lake.stored().overwrite(table([102], "u"), "id = 2")
    lake.stored().delete("id = 11")
    lake.stored().append(table([2, 2]))
    lake.stored().overwrite(table([3]), "id = 3")
    lake.stored().delete("kind = 'a'")
    lake.stored().overwrite(table([1, 9], "z"))
    lake.stored().append(table([4]))

    assert len(lake.stored().snapshots()) > 8
    asyncio.run(every_slice(lake))


def expire(lake, *numbers):
    """Expire the snapshots with these sequence numbers, and delete the files that only they need."""
    stored = lake.stored()
    gone = [each for each in stored.snapshots() if each.sequence_number in numbers]
    still = {task.file.file_path for task in stored.scan().plan_files()}
    needless = {
        task.file.file_path
        for each in gone
        for task in stored.scan(snapshot_id=each.snapshot_id).plan_files()
        if task.file.file_path not in still
    }
    for each in gone:
        lake.stored().maintenance.expire_snapshots().by_id(each.snapshot_id).commit()
    for path in needless:
        Path(path.removeprefix("file://")).unlink()


def replace_newest(lake):
    """Say of the newest snapshot that it only rearranged files, as a compaction says, which pyiceberg cannot write."""
    path = lake.metadata_path()
    metadata = json.loads(path.read_text())
    newest = max(metadata["snapshots"], key=lambda each: each["sequence-number"])
    newest["summary"]["operation"] = "replace"
    path.write_text(json.dumps(metadata))


def test_rearranging_files_changes_nothing_and_reads_nothing(lake):
    """Damage: each compaction of a terabyte is a terabyte of withdrawals and insertions."""
    lake.create(table([1]))
    lake.stored().append(table([2]))

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        stored = lake.stored()
        rows = stored.scan().to_arrow()
        with stored.transaction() as transaction:
            old = {task.file for task in stored.scan().plan_files()}
            (new,) = _dataframe_to_data_files(stored.metadata, rows, stored.io)
            with transaction.update_snapshot().overwrite() as rewrite:
                for file in old:
                    rewrite.delete_data_file(file)
                rewrite.append_data_file(new)
        replace_newest(lake)
        after = await reader.upstream_frontier()
        assert after != before
        assert listed(await reader.read([Slice(7, before, after)], table="", locate=False)).rows == ()
        lake.stored().delete("id = 1")
        assert await read(reader, before, await reader.upstream_frontier()) == {(1, "a"): -1}

    asyncio.run(body())


def test_an_expired_snapshot_is_an_error_that_names_its_number(lake):
    """Damage: rows are skipped silently where expiry overtakes the source."""
    lake.create(table([1]))

    async def body():
        reader = await lake.reader()
        durable = await reader.upstream_frontier()
        for n in range(2, 5):
            lake.stored().append(table([n]))
        after = await reader.upstream_frontier()
        expire(lake, 1)
        assert await read(reader, durable, after) == {(n, "a"): 1 for n in range(2, 5)}
        restarted = await lake.reader()
        await restarted.commit(durable)
        with pytest.raises(SourceError, match=r"sequence number 1 is expired, .* there are 2, 3, 4;"):
            await restarted.upstream_frontier()
        expire(lake, 2)
        for slices in ([Slice(7, durable, after)], [Slice(7, NOTHING_READ, up_to(2))]):
            with pytest.raises(SourceError, match=r"sequence number [12] is expired"):
                await reader.read(slices, table="", locate=False)
        assert await read(await lake.reader(), NOTHING_READ, after) == {(n, "a"): 1 for n in range(1, 5)}

    asyncio.run(body())


def test_a_file_that_is_gone_is_an_error_that_names_it(lake):
    """Damage: rows are skipped silently where files are cleaned up too early."""
    lake.create(table([1]))
    (path,) = (lake.root / "data").glob("*.parquet")
    path.unlink()

    async def body():
        reader = await lake.reader()
        await reader.read([Slice(7, NOTHING_READ, await reader.upstream_frontier())], table="", locate=False)

    with pytest.raises(SourceError, match=r"file '.*\.parquet' is gone before it was durable here"):
        asyncio.run(body())


def test_a_branch_that_is_set_back_is_followed_from_its_next_snapshot_on(lake):
    """Damage: after a rollback the collection has rows that the table has not."""
    lake.create(table([1]))

    async def body():
        reader = await lake.reader()
        await reader.upstream_frontier()
        lake.stored().append(table([2]))
        before = await reader.upstream_frontier()
        first = next(each for each in lake.stored().snapshots() if each.sequence_number == 1)
        lake.stored().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
        with pytest.raises(SourceError, match="its snapshot 2 was read, and its newest one is 1; commit to the table"):
            await reader.upstream_frontier()
        lake.stored().append(table([3]))
        after = await reader.upstream_frontier()
        restarted = await lake.reader()
        await restarted.commit(before)
        assert await restarted.upstream_frontier() == after
        for each in (reader, restarted):
            assert await read(each, before, after) == {(2, "a"): -1, (3, "a"): 1}

    asyncio.run(body())


def test_a_branch_is_followed_by_its_name(lake):
    """Damage: rows of an audit branch that was not published are in the view."""
    lake.create(table([1]))
    stored = lake.stored()
    stored.manage_snapshots().create_branch(stored.current_snapshot().snapshot_id, "audit").commit()
    lake.stored().append(table([2]), branch="audit")
    lake.stored().append(table([3]))

    async def ask(branch):
        lake.options["branch"] = branch
        reader = await lake.reader()
        return await read(reader, NOTHING_READ, await reader.upstream_frontier())

    assert asyncio.run(ask("audit")) == {(1, "a"): 1, (2, "a"): 1}
    assert asyncio.run(ask("main")) == {(1, "a"): 1, (3, "a"): 1}
    with pytest.raises(SourceError, match="has no branch 'odd'; it has audit, main"):
        asyncio.run(ask("odd"))


def test_a_table_that_was_created_again_is_another_one(lake):
    """Damage: the rows of another table are mixed with those of the first one."""
    lake.create(table([1]))

    async def body():
        reader = await lake.reader()
        await reader.upstream_frontier()
        await lake.break_promise()
        for each in (reader, await lake.reader()):
            with pytest.raises(SourceError, match="is another table: its id was .* and is .*; it was dropped"):
                await each.upstream_frontier()

    asyncio.run(body())


def test_columns_that_are_added_renamed_widened_and_dropped(tmp_path):
    """Damage: a column is read by its name where another one had that name before: NULLs, or wrong withdrawals."""
    rows = pa.table({"id": pa.array([1], pa.int32()), "kind": ["a"], "more": ["x"]})
    lake = Lake(tmp_path).create(rows)

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        with lake.stored().update_schema() as update:
            update.add_column("added", StringType())
            update.update_column("id", LongType())
            update.rename_column("more", "less")
        added = pa.table({"id": pa.array([2], pa.int64()), "kind": ["b"], "less": ["y"], "added": ["z"]})
        lake.stored().append(added)
        after = await reader.upstream_frontier()
        assert await read(reader, before, after) == {(2, "b"): 1}
        assert await read(reader, NOTHING_READ, after) == {(1, "a"): 1, (2, "b"): 1}
        with lake.stored().update_schema() as update:
            update.rename_column("kind", "sort")
        renamed = pa.table({"id": pa.array([3], pa.int64()), "sort": ["c"], "less": ["y"], "added": ["z"]})
        lake.stored().append(renamed)
        assert await read(reader, after, await reader.upstream_frontier()) == {(3, "c"): 1}
        lake.stored().delete("id = 1")
        assert await read(reader, after, await reader.upstream_frontier()) == {(3, "c"): 1, (1, "a"): -1}
        with lake.stored().update_schema() as update:
            update.delete_column("sort")
        with lake.stored().update_schema() as update:
            update.add_column("kind", StringType())
        for each in (reader, await lake.reader()):
            with pytest.raises(SourceError, match="cannot be read: it has no column `kind`; it has id;"):
                await each.upstream_frontier()

    asyncio.run(body())


def test_types_that_do_not_fit_are_refused(tmp_path):
    """Damage: an overflow in the middle of a table, days after the source was defined."""
    rows = pa.table({"i": pa.array([1], pa.int32()), "d": pa.array([Decimal("1.5")], pa.decimal128(5, 1))})
    lake = Lake(tmp_path).create(rows)

    async def ask(*types):
        lake.schema = Schema(tuple(Column(*each) for each in types))
        lake.consensus = MemoryConsensus()
        reader = await lake.reader()
        return await read(reader, NOTHING_READ, await reader.upstream_frontier())

    assert asyncio.run(ask(("I", "bigint"), ("d", "decimal(10,2)"))) == {(1, Decimal("1.50")): 1}
    for refused in (("i", "smallint"), ("i", "string"), ("d", "decimal(5,2)"), ("x", "int")):
        with pytest.raises(SourceError, match="cannot be read"):
            asyncio.run(ask(refused))


def test_a_table_without_sequence_numbers_is_refused(tmp_path):
    """Damage: snapshots of format 1 cannot be told apart, so rows are lost."""
    lake = Lake(tmp_path).create(table([1]), **{"format-version": "1"})

    async def body():
        await (await lake.reader()).upstream_frontier()

    with pytest.raises(
        SourceError, match="has format version 1, which has no sequence numbers; upgrade the table to format version 2"
    ):
        asyncio.run(body())


def test_an_absent_table_is_an_error_and_an_absent_server_a_pause(tmp_path):
    """Damage: an operator waits for a table that will never be there, or drops a source for a pause of the network."""

    async def ask(lake):
        await (await lake.reader()).upstream_frontier()

    with pytest.raises(SourceError, match=r"does not exist, or no metadata/version-hint.text says"):
        asyncio.run(ask(Lake(tmp_path)))


def test_options_name_one_table_and_do_not_show_their_secrets():
    """Damage: a key in a log file; a source that reads another table than its author meant."""
    given = {"catalog": "rest", "table": "a.b", "uri": "http://127.0.0.1:9", "credential": "id:hush"}
    options = understood("s", IcebergOptions, given)
    assert "hush" not in repr(options)
    assert "hush" not in repr(options.properties)
    for wrong in ({}, {"path": "/x", **given}, {"catalog": "rest"}, {"path": "/x", "table": "a.b"}):
        with pytest.raises(DefinitionError, match=r"either path or catalog|go together"):
            understood("s", IcebergOptions, wrong)


def test_a_catalog_is_opened_under_its_name_with_what_pyiceberg_takes(monkeypatch):
    """Damage: the tables of a SQL catalog are not there, because they were made under another name than ours."""
    opened = []

    def load(name, **properties):
        opened.append((name, properties))
        raise NoSuchTableError("no such table")

    monkeypatch.setattr("pyiceberg.catalog.load_catalog", load)
    given = {
        "catalog": "sql",
        "catalog_name": "prod",
        "uri": "postgresql://db/catalog",
        "table": "a.b",
        "region": "eu-west-1",
        "scope": "read",
        "client_properties": '{"s3.anonymous": "true", "region": "not this one", "ssl": {"cabundle": "/ca.pem"}}',
    }
    stored = StoredTable(understood("s", IcebergOptions, given), item="s")
    with pytest.raises(SourceError, match=r"does not exist in the catalog called 'prod' \(option catalog_name\)"):
        stored.load()
    ((name, properties),) = opened
    assert name == "prod"
    assert properties["type"] == "sql"
    assert (properties["client.region"], properties["scope"]) == ("eu-west-1", "read")
    assert (properties["s3.anonymous"], properties["ssl"]) == ("true", {"cabundle": "/ca.pem"})
    with pytest.raises(DefinitionError, match="it must be a JSON object") as refused:
        understood("s", IcebergOptions, {**given, "client_properties": "env:P"}, resolve=lambda _: "hush")
    assert "hush" not in str(refused.value)


def test_rows_that_position_deletes_delete_are_withdrawn(lake):
    """Damage: rows that a merge on read deletes stay, or all rows of their file go."""
    lake.create(table(range(6)))
    (path,) = (task.file.file_path for task in lake.stored().scan().plan_files())
    delete_positions(lake, path, [1, 2])
    lake.stored().append(table([7]))
    delete_positions(lake, path, [5])
    lake.stored().delete("id = 7")
    lake.stored().delete("id = 0")
    assert Counter(lake.rows()["id"].to_pylist()) == Counter([3, 4])
    asyncio.run(every_slice(lake))


def test_equality_deletes_are_refused_by_name(lake):
    """Damage: rows that an upsert replaced are in the collection beside those that replaced them."""
    lake.create(table(range(6)))

    async def body():
        reader = await lake.reader()
        before = await reader.upstream_frontier()
        commit_deletes(lake, pa.table({"id": pa.array([3], pa.int64())}), DataFileContent.EQUALITY_DELETES)
        after = await reader.upstream_frontier()
        for each in (Slice(7, before, after), Slice(7, NOTHING_READ, after)):
            with pytest.raises(SourceError, match="cannot be read by pyiceberg: .*equality deletes"):
                await reader.read([each], table="", locate=False)

    asyncio.run(body())
