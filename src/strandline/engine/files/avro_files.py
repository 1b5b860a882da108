"""Avro object container files: decoded by Python, each file in one task, record by record.

A record that a column cannot hold is an error, with the record's number in its file (from 1).  Behind a block that
cannot be read, nothing of a file can: that is one error, and the records before it are rows.

Rejected: Spark's own reader, which is a jar of its own, of another release, and says neither which record it could not
read nor what it would have held.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final

import fastavro
import pyarrow as pa
from fastavro import _read_py as plain
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.algebra import types
from strandline.algebra.formats import DatedFile
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.algebra.undecoded import of_record
from strandline.engine.files.avro_types import nests  # which lets decimals keep all their digits
from strandline.engine.files.values import Refused, named
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Local, dataframe

BATCH_ROWS: Final = 4_096
_PATH: Final = "path"
_NAME: Final = "name"
_PREFIX: Final = "prefix"


@dataclass(frozen=True, slots=True)
class AvroFiles:
    """What Python decodes of files; plain data, so that Spark can send it to its workers."""

    schema: Schema

    def frame(self, session: SparkSession, files: Sequence[DatedFile]) -> DataFrame:
        """Return the records of these files as updates (lazy), errors among them."""
        spread = dataframe(Local(_told(files), plain=True), session).repartition(len(files))
        return spread.mapInArrow(self.batches, from_arrow_schema(inline.update_schema(self.schema)))

    def batches(self, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield updates; this is what runs in Spark's workers."""
        for batch in files:
            for file in batch.to_pylist():
                yield from self._batches(file)

    def of(self, file: DatedFile) -> Iterator[pa.RecordBatch]:
        """Yield the updates of one file, in this process."""
        (told,) = _told([file]).to_pylist()
        return self._batches(told)

    def _batches(self, file: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        target = inline.update_schema(self.schema)
        rows: list[dict[str, Any]] = []
        for row in self._rows(file):
            rows.append(row)
            if len(rows) == BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(rows, target)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, target)

    def _rows(self, file: dict[str, Any]) -> Iterator[dict[str, Any]]:
        kinds = {column.name: column.type for column in self.schema}
        converters = [(name, named(name, kind, kinds[name])) for name, kind in types.columns(self.schema)]
        with Path(file[_PATH]).open("rb") as data:
            records = _records(data)
            written: Any = records.writer_schema
            fields = {field["name"].lower(): field["name"] for field in written["fields"]}
            found = [(name, fields[name.lower()], convert) for name, convert in converters]
            for number in count(1):
                try:
                    record = next(records)
                except StopIteration:
                    return
                except OSError:
                    raise  # the machine refused the file; its bytes may be whole
                except Exception as error:  # noqa: BLE001 - damaged bytes make it raise anything, with texts that differ
                    yield _error(file, number, f"from here on the file is damaged ({type(error).__name__})", "")
                    return
                yield _row(file, number, record, found)


def _told(files: Sequence[DatedFile]) -> pa.Table:
    """Return what decoding needs to know of each file."""
    return pa.table(
        {
            _PATH: [file.path for file in files],
            _NAME: [file.name for file in files],
            _PREFIX: [file.reason_prefix for file in files],
            TIME: pa.array([file.time for file in files], pa.int64()),
            DIFF: pa.array([file.diff for file in files], pa.int64()),
        }
    )


def _records(data: BinaryIO) -> Any:
    """Return fastavro's reader of a file: the one in Python where the records may be nested without end."""
    records = fastavro.reader(data)
    named: dict[str, Any] = {}
    fastavro.parse_schema(records.writer_schema or {}, named_schemas=named)
    if not nests(named):
        return records
    data.seek(0)
    return plain.reader(data)


def _row(
    file: dict[str, Any], number: int, record: Any, found: Sequence[tuple[str, str, Callable[[Any], Any]]]
) -> dict[str, Any]:
    try:
        values = {name: convert(record.get(field)) for name, field, convert in found}
    except Refused as refused:
        return _error(file, number, str(refused), json.dumps(record, default=str, ensure_ascii=False))
    return values | {TIME: file[TIME], DIFF: file[DIFF]}


def _error(file: dict[str, Any], number: int, reason: str, raw: str) -> dict[str, Any]:
    return {ERROR: of_record(file[_NAME], number, file[_PREFIX] + reason, raw), TIME: file[TIME], DIFF: 1}
