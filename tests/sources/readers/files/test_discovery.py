"""Files that look alike are one source, and files that do not are several."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from strandline.errors import DefinitionError, SourceError
from strandline.options import understood
from strandline.sources.kinds import Discovered
from strandline.sources.readers.files.discovery import Looked, find


def found(path: object, **options: str) -> dict[str, Discovered]:
    """Return what is found, by the path of each source."""
    given = understood("files", Looked, {"path": str(path), **options})
    return {each.options["path"]: each for each in asyncio.run(find(given))}


def test_each_set_of_files_that_look_alike_is_a_source(tmp_path: Path) -> None:
    """Damage: a person writes fifty schemas by hand; or files of two kinds are read as one, and half are errors."""
    for day in (1, 2, 3, 4, 5):
        (tmp_path / f"visits-{day}.csv").write_text("customer,seconds\n1,2.5\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "orders-1.csv").write_text("id,amount\n1,2\n")
    (tmp_path / "sub" / "orders-2.csv").write_text("id,amount\n1,2\n")
    (tmp_path / "sub" / "customers.csv").write_text("id,city\n1,Delft\n")
    (tmp_path / "events.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1, "at": "2024-01-01T00:00:00Z"}\n{"b": true}\n'))
    parquet.write_table(pa.table({"x": pa.array([1], pa.int16())}), tmp_path / "x.parquet")
    (tmp_path / "readme.md").write_text("no data")
    (tmp_path / ".hidden.csv").write_text("a\n1\n")
    told = {path.removeprefix(f"{tmp_path}/"): each for path, each in found(tmp_path).items()}
    assert {path: (each.name, each.columns.ddl) for path, each in told.items()} == {
        "*.csv": (tmp_path.name, "`customer` bigint, `seconds` double"),
        "*.jsonl.gz": (tmp_path.name, "`a` bigint, `at` timestamp, `b` boolean"),
        "*.parquet": (tmp_path.name, "`x` smallint"),
        "sub/customers.csv": ("customers", "`id` bigint, `city` string"),
        "sub/orders-*.csv": ("orders", "`id` bigint, `amount` bigint"),
    }
    assert told["*.csv"].note == "5 files are there now"


def test_what_the_path_does_not_say_is_an_option(tmp_path: Path) -> None:
    """Damage: the source that was proposed does not read what was sampled."""
    (tmp_path / "data").write_text("1;2\n3;4\n")
    (one,) = found(tmp_path, format="csv", header="false", delimiter=";").values()
    assert one.options == {"path": f"{tmp_path}/*", "format": "csv", "header": "false", "delimiter": ";"}
    assert one.columns.names == ("f0", "f1")


def test_a_directory_without_files_and_a_file_that_is_damaged_are_named(tmp_path: Path) -> None:
    """Damage: an operator reads that there is nothing, and not where it was looked for."""
    with pytest.raises(DefinitionError, match="there is no file to read at"):
        found(tmp_path)
    with pytest.raises(DefinitionError, match="only local directories"):
        found("s3://bucket/x")
    (tmp_path / "a.parquet").write_text("no parquet")
    with pytest.raises(SourceError, match=r"a\.parquet"):
        found(tmp_path)
