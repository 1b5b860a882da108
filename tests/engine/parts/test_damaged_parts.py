"""A damaged Parquet part is refused, or what was damaged in it does not show: never does a read give other rows.

Every part here is read through Spark as people read: all of it, one column, by a filter that Spark pushes into the
file, by one on another column, only counted.  Parts differ in their writer and in what guards their bytes: executors
or this process, with a sidecar or without one (as in an object store).  Where there is one, `fsck` finds every damage.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.frames.inline import update_schema
from strandline.engine.parts import scan
from strandline.engine.parts.part_store import PartStore
from strandline.engine.spark import SparkEngine
from strandline.errors import CorruptionError
from strandline.persist.handles.contents import StageRequest
from strandline.persist.shard.batch import BlobPart, Staged
from strandline.testing.contracts.engine_contract import contents

pytestmark = pytest.mark.spark

DAMAGES: Final = 120
LONG_DAMAGES: Final = 2_400
ROWS: Final = 600
SCHEMA: Final = Schema((Column("k", "bigint"), Column("v", "string"), Column("w", "double"), Column("t", "array<int>")))
READS: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "all": lambda frame: frame,
    "one column": lambda frame: frame.select("v"),
    "a pushed filter": lambda frame: frame.where("k BETWEEN 217 AND 390"),
    "a filter on text": lambda frame: frame.where("v = 'value 7' OR v IS NULL").select("k", "w"),
    "a count": lambda frame: frame.groupBy().count(),
}


def rows() -> pa.Table:
    """Rows with repeated values, NULLs, nested values and two times: dictionaries, levels and several encodings."""
    columns = {
        "k": list(range(ROWS)),
        "v": [None if i % 11 == 0 else f"value {i % 40}" for i in range(ROWS)],
        "w": [None if i % 7 == 0 else i / 3 for i in range(ROWS)],
        "t": [None if i % 5 == 0 else list(range(i % 4)) for i in range(ROWS)],
        ERROR: [None] * ROWS,
        TIME: [1 + i % 2 for i in range(ROWS)],
        DIFF: [1 + i % 3 for i in range(ROWS)],
    }
    return pa.table(columns, schema=update_schema(SCHEMA))


class Written:
    """A part, what guards it, and what reading it must give."""

    def __init__(self, engine: SparkEngine, root: Path, way: str, *, guarded: bool) -> None:
        self.engine, self.name = engine, f"{way}, {'with' if guarded else 'without'} sidecar"
        prefix = f"shard-1/{way}-{guarded}/"
        request = StageRequest("shard-1", SCHEMA, 0, 10, prefix, small=way == "driver", normalised=True)
        one_task = engine.spark_frame(engine.from_arrow(rows().drop_columns([ERROR]), SCHEMA)).coalesce(1)
        staged = asyncio.run(engine.stage(engine.from_dataframe(one_task), request))
        (part,) = staged.parts
        assert isinstance(part, BlobPart)
        if not guarded and part.sidecar:
            (root / part.sidecar).unlink(missing_ok=True)
            part = replace(part, sidecar="")
        self.staged: Staged = replace(staged, parts=(part,))
        self.path = root / part.key
        self.whole = self.path.read_bytes()
        self.expected = {name: self.read(name) for name in READS}
        footer = int.from_bytes(self.whole[-8:-4], "little") + 8
        self.covered = bool(part.sidecar)
        self.pages_end = max(_end(column) for column in _columns(self.path))
        assert self.pages_end < len(self.whole) - footer + 1

    def is_found(self) -> bool:
        """Return whether a read of every byte (fsck) finds that something is wrong."""
        try:
            asyncio.run(self.engine.verify(contents(self.staged, schema=SCHEMA)))
        except CorruptionError:
            return True
        return False

    def read(self, name: str) -> Counter[str]:
        """Read the part anew; return the rows, as text, with how often each is there."""
        frame = self.engine.spark_frame(asyncio.run(self.engine.read(contents(self.staged, schema=SCHEMA))))
        return Counter(map(str, READS[name](frame).toArrow().to_pylist()))


def _columns(path: Path) -> Iterator[pq.ColumnChunkMetaData]:
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            yield metadata.row_group(group).column(column)


def _start(column: pq.ColumnChunkMetaData) -> int:
    return min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))


def _end(column: pq.ColumnChunkMetaData) -> int:
    return _start(column) + column.total_compressed_size


def damages(written: Written, random_: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield for ever a sort of damage and the damaged bytes; each sort as often as any other."""
    whole = written.whole
    starts = [_start(column) for column in _columns(written.path)]

    def flip(at: int) -> bytes:
        data = bytearray(whole)
        data[at] ^= 1 << random_.randrange(8)
        return bytes(data)

    while True:
        yield "any bit", flip(random_.randrange(len(whole)))
        yield "a page's header", flip(random_.choice(starts) + random_.randrange(24))
        yield "between the pages and the end", flip(random_.randrange(written.pages_end, len(whole)))
        begin = random_.randrange(0, len(whole), 512)
        yield "a sector of zeros", whole[:begin] + bytes(len(whole[begin : begin + 512])) + whole[begin + 512 :]
        a, b = sorted(random_.sample(range(len(whole) - 64), 2))
        yield "64 bytes from elsewhere", whole[:b] + whole[a : a + 64] + whole[b + 64 :]
        yield "cut off", whole[: random_.randrange(len(whole))]
        yield "extended", whole + random_.randbytes(random_.randrange(1, 64))


def outcome(written: Written, name: str) -> str:
    """Say what a read of the damaged part gave."""
    try:
        found = written.read(name)
    except CorruptionError:
        return "refused"
    except (PySparkException, Py4JError):
        return "failed"
    return "right" if found == written.expected[name] else "WRONG"


def damage_parts(spark: SparkSession, root: Path, count: int, record_property, stage: str) -> None:
    """Damage parts ``count`` times; no read may give other rows."""
    random_ = random.Random(count)
    engine = SparkEngine(spark, PartStore(root))
    seen: Counter[tuple[str, str, str]] = Counter()
    overlooked: Counter[str] = Counter()
    ways = [("spark", True), ("spark", False), ("driver", True), ("driver", False)]
    for way, guarded in ways:
        written = Written(engine, root, way, guarded=guarded)
        sorts = damages(written, random_)
        for number in range(count // len(ways)):
            sort, data = next(sorts)
            written.path.write_bytes(data)
            overlooked[sort] += data != written.whole and written.covered and not written.is_found()
            seen[written.name, sort, outcome(written, list(READS)[number % len(READS)])] += 1
        written.path.write_bytes(written.whole)
    wrong = sum(n for (_, _, came), n in seen.items() if came == "WRONG")
    tried = seen.total()
    verdict = "pass" if wrong == 0 and tried >= count else "miss"
    record_property("FIGURE", f"{stage}.damaged-parts tried={tried},wrong={wrong} >={count},0 {verdict}")
    assert wrong == 0, sorted(seen.items())
    assert overlooked.total() == 0, f"not found by reading everything: {overlooked}"


def test_a_damaged_part_never_gives_other_rows(spark, tmp_path, record_property) -> None:
    """Damage: a disk that rots changes values, or makes a filter skip rows, and no error reports it."""
    damage_parts(spark, tmp_path, DAMAGES, record_property, "spark")


def test_without_page_checksums_wrong_rows_are_found(spark, tmp_path, monkeypatch) -> None:
    """Damage: a test that sees nothing whatever happens."""
    monkeypatch.setattr(scan, "_OPTIONS", {})
    written = Written(SparkEngine(spark, PartStore(tmp_path)), tmp_path, "spark", guarded=False)
    sorts = damages(written, random.Random(1))
    for _ in range(DAMAGES):
        _, data = next(sorts)
        written.path.write_bytes(data)
        if outcome(written, "all") == "WRONG":
            return
    pytest.fail("no damage of an unchecked part gave wrong rows")


@pytest.mark.slow
def test_a_part_damaged_in_very_many_ways_never_gives_other_rows(spark, tmp_path, record_property) -> None:
    """Damage: the same, where it takes more luck to find."""
    damage_parts(spark, tmp_path, LONG_DAMAGES, record_property, "long")
