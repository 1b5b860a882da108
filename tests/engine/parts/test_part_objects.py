"""Parts in a bucket are described, checked and removed as those in files are."""

from __future__ import annotations

import itertools
from dataclasses import replace

import obstore
import pyarrow as pa
import pytest
from msgspec import structs

from s3_server import S3Server
from strandline.engine.frames import inline
from strandline.engine.parts.part_objects import REQUESTS_MAX, ObjectParts
from strandline.engine.parts.part_store import Range
from strandline.errors import CorruptionError, Indeterminate, Unavailable
from strandline.store.blob_kinds.object_location import ObjectLocation

pytestmark = pytest.mark.server
PREFIXES = itertools.count()


@pytest.fixture
def location(s3_server: S3Server) -> ObjectLocation:
    """Return a prefix that no other test has."""
    return ObjectLocation(f"s3://{s3_server.bucket}/parts/{next(PREFIXES)}", s3_server.storage)


def parquet(rows: int) -> bytes:
    """Return a part of some updates."""
    times = pa.array(range(10, 10 + rows), pa.int64())
    return inline.parquet(pa.table({"id": times, "__time": times, "__diff": pa.array([1] * rows, pa.int64())}))


def test_a_part_is_described_checked_and_loaded(location: ObjectLocation) -> None:
    """Damage: what was staged in a bucket cannot be read back, or is read as something else."""
    parts = ObjectParts(location, "s3a://bucket/x")
    written = parts.write("s/1/part-a.parquet", parquet(3))
    assert parts.check(written.part) == written
    assert (written.times, written.diffs, written.part.rows) == (Range(10, 12), Range(1, 1), 3)
    assert parts.load(written.part)["id"].to_pylist() == [10, 11, 12]
    assert parts.uri("s/1") == "s3a://bucket/x/s/1"


def test_many_parts_are_checked_in_their_order_and_a_missing_one_is_reported(location: ObjectLocation) -> None:
    """Damage: a plan mixes up the parts' times; or a missing part among many is overlooked."""
    parts = ObjectParts(location, "")
    written = [parts.write(f"s/many/{number}", parquet(1 + number)) for number in range(REQUESTS_MAX + 3)]
    wanted = [each.part for each in written]
    assert parts.check_all(wanted) == written
    assert parts.check_all(wanted[:1]) == written[:1]
    assert parts.check_all([]) == []
    parts.delete(wanted[5])
    with pytest.raises(CorruptionError, match="s/many/5 is missing"):
        parts.check_all(wanted)


def test_a_written_prefix_is_described_without_its_leftovers(location: ObjectLocation) -> None:
    """Damage: an empty part or a directory's sign is taken for rows."""
    parts, store = ObjectParts(location, ""), location.open(retries=0)
    for name, data in {"b": parquet(2), "a": parquet(1), "none": parquet(0), "sign": b""}.items():
        obstore.put(store, f"s/2/{name}.parquet", data)
    obstore.put(store, "s/20/other.parquet", parquet(1))
    assert [each.part.key for each in parts.describe("s/2/")] == ["s/2/a.parquet", "s/2/b.parquet"]
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "s/2/none.parquet")
    parts.delete_prefix("s/2/")
    assert parts.describe("s/2") == []
    (other,) = parts.describe("s/20")
    parts.delete(other.part)
    parts.delete(other.part)
    with pytest.raises(CorruptionError, match="missing"):
        parts.check(other.part)


def test_what_is_not_the_part_that_was_appended_is_refused(location: ObjectLocation) -> None:
    """Damage: damaged or exchanged bytes are read as rows."""
    parts, store = ObjectParts(location, ""), location.open(retries=0)
    data = parquet(5)
    part = parts.write("s/p", data).part
    for damaged in (data[:-1], data + b"x", data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], parquet(4), b""):
        obstore.put(store, "s/p", damaged)
        with pytest.raises(CorruptionError, match="s/p"):
            parts.check(part)
    obstore.put(store, "s/p", data[:30] + bytes([data[30] ^ 1]) + data[31:])
    with pytest.raises(CorruptionError, match="s/p"):
        parts.load(part)
    obstore.put(store, "s/p", data)
    with pytest.raises(CorruptionError, match="rows"):
        parts.check(structs.replace(part, rows=4))


def test_a_store_that_does_not_answer_is_no_corruption(location: ObjectLocation) -> None:
    """Damage: an operator restores what was only out of reach."""
    part = ObjectParts(location, "").write("s/p", parquet(1)).part
    gone = ObjectParts(replace(location, options={**location.options, "endpoint": "http://127.0.0.1:1"}), "")
    with pytest.raises(Unavailable):
        gone.check(part)
    with pytest.raises(Unavailable):
        gone.load(part)
    for change in (lambda: gone.write("s/q", parquet(1)), lambda: gone.delete(part), lambda: gone.describe("s")):
        with pytest.raises(Indeterminate):
            change()
