"""CSV files: what is written is read back."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.materialize.drivers.files import csv


class OneFile:
    """A place with one file."""

    def __init__(self) -> None:
        self.sink = io.BytesIO()

    @contextmanager
    def create(self, _name: str) -> Iterator[io.BytesIO]:
        yield self.sink

    @contextmanager
    def open(self, _name: str) -> Iterator[io.BytesIO]:
        yield io.BytesIO(self.sink.getvalue())


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
@pytest.mark.parametrize(
    "texts", [["2024-02-29", None], ["-0043-03-15", "0000-05-05", None, "0001-01-01", "12000-01-02"]]
)
def test_moments_of_all_years_are_read_back(kind: pa.DataType, texts: list[str | None]) -> None:
    """Damage: a date of Caesar's is written once and cannot be read again, so the table stops for ever."""
    place: Any = OneFile()
    moments = pa.array(np.array(texts, "datetime64[us]"), pa.timestamp("us"))
    if pa.types.is_timestamp(kind):
        moments = pa.array(
            moments.cast(pa.int64()).to_numpy(zero_copy_only=False) + 1_500_000, pa.int64(), from_pandas=True
        )
    rows = pa.table({"k": pa.array(range(len(texts))), "at": moments.cast(kind)})
    assert csv.write(place, "a.csv", iter([rows]), rows.schema) == len(texts)
    assert pa.concat_tables(csv.read(place, "a.csv", rows.schema, ["k", "at"])).equals(rows)
    assert pa.concat_tables(csv.read(place, "a.csv", rows.schema, ["at"])).equals(rows.select(["at"]))
