"""The columns of a Parquet file, as the types that its values have.

Arrow's own schema says it of all but the times of 96 bits (INT96), which Spark writes by default and Arrow takes for
times without a zone.  They are instants, with nanoseconds: Spark writes microseconds in them, other programs any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.algebra.stored import plain, type_of

_SPARK: Final = b"org.apache.spark.version"
_OF_OLD_CALENDAR: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_FIRST_MODERN: Final = b"3"
_INT96: Final = "INT96"


@dataclass(frozen=True)
class ParquetSchema:
    """What ``file`` says of its columns, in its order.

    >>> import io
    >>> sink = io.BytesIO()
    >>> table = pa.table({"at": pa.array([1], pa.timestamp("us")), "n": pa.nulls(1)})
    >>> pq.write_table(table, sink, use_deprecated_int96_timestamps=True)
    >>> ParquetSchema(pq.ParquetFile(sink)).columns
    [('at', 'timestamp'), ('n', 'string')]
    """

    file: pq.ParquetFile

    @property
    def by_spark(self) -> bool:
        """Whether Spark wrote it."""
        return _SPARK in (self.file.metadata.metadata or {})

    @property
    def old_calendar(self) -> bool:
        """Whether dates before 1900 may be of the calendar that Spark had before version 3."""
        metadata = self.file.metadata.metadata or {}
        return any(key in metadata for key in _OF_OLD_CALENDAR) or metadata.get(_SPARK, _FIRST_MODERN) < _FIRST_MODERN

    @cached_property
    def leaves(self) -> Sequence[Sequence[int]]:
        """Of each column the numbers of the stored columns that hold it: the leaves of its type."""
        numbers = iter(range(len(self.file.schema)))
        return [list(_leaves(plain(field.type), numbers)) for field in self.file.schema_arrow]

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns with their types."""
        unit = "us" if self.by_spark else "ns"
        return pa.schema(
            field.with_type(self._instants(plain(field.type), iter(leaves), unit))
            for field, leaves in zip(self.file.schema_arrow, self.leaves, strict=True)
        )

    @property
    def columns(self) -> list[tuple[str, str | None]]:
        """The columns with the types to read them as; None: nothing reads it."""
        return [
            (field.name, None if self.hides_digits(number) else type_of(field.type))
            for number, field in enumerate(self.stored)
        ]

    def has_nanoseconds(self, number: int) -> bool:
        """Tell whether times of 96 bits are in a column, and may have nanoseconds."""
        return not self.by_spark and any(self._is_int96(leaf) for leaf in self.leaves[number])

    def hides_digits(self, number: int) -> bool:
        """Tell whether such times stand inside lists, maps or structs, where Arrow does not say all their digits."""
        return self.has_nanoseconds(number) and bool(pa.types.is_nested(self.stored.field(number).type))

    def _is_int96(self, leaf: int) -> bool:
        return bool(self.file.schema.column(leaf).physical_type == _INT96)

    def _instants(self, kind: pa.DataType, leaves: Iterator[int], unit: str) -> pa.DataType:
        """Return a type whose times of 96 bits are the instants that they are."""
        if pa.types.is_struct(kind):
            inner = [kind.field(n) for n in range(kind.num_fields)]
            return pa.struct([field.with_type(self._instants(field.type, leaves, unit)) for field in inner])
        if pa.types.is_map(kind):
            return pa.map_(*(self._instants(each, leaves, unit) for each in (kind.key_type, kind.item_type)))
        if pa.types.is_list(kind):
            return pa.list_(self._instants(kind.value_type, leaves, unit))
        return pa.timestamp(unit, "UTC") if self._is_int96(next(leaves)) else kind


def _leaves(kind: pa.DataType, numbers: Iterator[int]) -> Iterator[int]:
    if not pa.types.is_nested(kind):
        yield next(numbers)
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_type, numbers)
        yield from _leaves(kind.item_type, numbers)
    else:
        for n in range(kind.num_fields):
            yield from _leaves(kind.field(n).type, numbers)
