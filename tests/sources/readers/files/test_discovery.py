"""Files that look alike are one source, and files that do not are several."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from pyarrow import parquet

from strandline.errors import DefinitionError, SourceError
from strandline.options import understood
from strandline.sources.kinds import Discovered
from strandline.sources.readers import sampled
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
    assert told["*.csv"].note == "5 files are there now, of which 3 were looked at"


def test_what_the_path_does_not_say_is_an_option(tmp_path: Path) -> None:
    """Damage: the source that was proposed does not read what was sampled."""
    (tmp_path / "data").write_text("1;2\n3;4\n")
    (one,) = found(tmp_path, format="csv", header="false", delimiter=";").values()
    assert one.options == {"path": f"{tmp_path}/*", "format": "csv", "header": "false", "delimiter": ";"}
    assert one.columns.names == ("f0", "f1")


def columns(path: Path, **options: str) -> dict[str, str]:
    """Return the columns of the one source that is found."""
    (one,) = found(path, **options).values()
    return {column.name: column.type for column in one.columns}


CSV = {
    "i": (["1", "-7", "0"], "bigint"),
    "huge": (["1", "12345678901234567890", ""], "decimal(38,0)"),
    "account": (["1" * 40, "2", ""], "string"),
    "mixed": (["123456789012345678", "2.5", ""], "string"),
    "exact": (["123456789012345", "2.5", "0.30000000000000004"], "double"),
    "zip": (["01234", "1", "2"], "string"),
    "d": (["1", "2.50", "1e5"], "double"),
    "german": (["1,5", "2,5", ""], "string"),
    "b": (["true", "False", ""], "boolean"),
    "bits": (["1", "true", ""], "string"),
    "day": (["2024-02-29", "0001-01-01", ""], "date"),
    "no day": (["2023-02-29", "", ""], "string"),
    "at": (["2024-02-29T12:00:00Z", "2024-02-29 12:00:00.5+01:00", ""], "timestamp"),
    "naive": (["2024-02-29T12:00:00", "2024-02-29 12:00:00.123456", ""], "timestamp_ntz"),
    "zones": (["2024-02-29T12:00:00Z", "2024-02-29 12:00:00", ""], "string"),
    "clock": (["12:30", "", ""], "string"),
    "empty": (["", "", ""], "string"),
    "a `b`": (["x", "y", "z"], "string"),
}


def test_texts_of_csv_have_the_type_that_every_reader_of_them_takes(tmp_path: Path) -> None:
    """Damage: a proposal makes each record an error, or a postal code loses its zero."""
    header = ",".join(f'"{name}"' for name in CSV)
    rows = zip(*(texts for texts, _ in CSV.values()), strict=True)
    lines = [",".join(f'"{text}"' for text in row) for row in rows]
    (tmp_path / "a.csv").write_text("\n".join([header, *lines]) + "\n")
    assert columns(tmp_path) == {name: kind for name, (_, kind) in CSV.items()}


def test_names_of_csv_that_are_no_columns_are_left_out(tmp_path: Path) -> None:
    """Damage: the proposal is no statement, or its source refuses every file."""
    (tmp_path / "a.csv").write_text(",id,x,X,__t\n1,2,3,4,5\n")
    (one,) = found(tmp_path).values()
    assert one.columns.names == ("id",)
    for name in ("''", "'x'", "'X'", "'__t'"):
        assert f"column {name}" in one.note


def test_a_text_for_null_counts_in_whichever_file_it_is(tmp_path: Path) -> None:
    """Damage: the first file has none, and the proposal makes each record of the second an error."""
    for name, text in {"a": "n,s\n1,x\n", "b": "n,s\nNA,x\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (one,) = found(tmp_path).values()
    assert (one.columns.ddl, one.options.get("nulls")) == ("`n` bigint, `s` string", "NA")
    (tmp_path / "c.csv").write_text("n,s\n2,NA\n")
    (one,) = found(tmp_path).values()
    assert (one.columns.ddl, one.options.get("nulls")) == ("`n` string, `s` string", None)


@pytest.mark.parametrize(
    ("text", "kinds", "nulls"),
    [
        ("n,d,s\n1,2024-01-01,a\nNA,NA,b\n", ("bigint", "date", "string"), "NA"),
        ("n,d,s\n1,2024-01-01,a\nNA,NA,NA\n", ("string", "string", "string"), None),
        ("n,d,s\n1,2024-01-01,a\nNA,-,b\n", ("string", "string", "string"), None),
        ("n,d,s\n1,,a\nnull,,b\n", ("bigint", "string", "string"), "null"),
    ],
)
def test_a_text_for_null_is_proposed_where_it_can_mean_nothing_else(
    tmp_path: Path, text: str, kinds: tuple[str, ...], nulls: str | None
) -> None:
    """Damage: a number that is `NA` is an error of each file; or the code of Namibia becomes NULL in silence."""
    (tmp_path / "a.csv").write_text(text)
    (one,) = found(tmp_path).values()
    assert tuple(column.type for column in one.columns) == kinds
    assert one.options.get("nulls") == nulls
    assert (f"{nulls!r} is read as NULL" in one.note) == (nulls is not None)


def test_a_value_of_another_type_is_seen_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the source is defined with whole numbers, and its first fraction, one MiB further on, is an error."""
    rows = ["1\n"] * 700_000
    (tmp_path / "a.csv").write_text("".join(["n\n", *rows, "1.5\n"]))
    assert columns(tmp_path / "a.csv") == {"n": "double"}
    (tmp_path / "a.json").write_text('{"n": 1}\n' * 150_000 + '{"n": 1.5}\n')
    assert columns(tmp_path / "a.json") == {"n": "double"}
    (tmp_path / "days").mkdir()
    for day, value in enumerate(["1", "1", "1", "2.5"]):
        (tmp_path / "days" / f"{day}.json").write_text(f'{{"n": {value}}}\n')
    assert columns(tmp_path / "days") == {"n": "double"}
    monkeypatch.setattr(sampled, "SAMPLE_BYTES", 1 << 20)
    (one,) = found(tmp_path / "a.csv").values()
    assert "the types are a guess from the first" in one.note


def test_json_values_have_types_that_hold_them_all(tmp_path: Path) -> None:
    """Damage: a proposal is no statement, or makes records errors that were looked at."""
    lines = [
        '{"i": 1, "huge": 12345678901234567890, "a b": {"x": 1, "y z": null}, "l": [{"x": 1}], "day": "2024-02-29"}',
        '{"i": 2.5, "huge": 1, "a b": {"y z": "t"}, "l": [{"y": "s"}, null], "day": "2024-02-29"}',
        '{"": 1, "__t": 1, "o": {"": 1}, "e": {}, "k": {"a": 1, "A": 2}, "m": [1, "a"], "nan": NaN, "n": null}',
        "no object",
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    assert columns(tmp_path) == {
        "i": "double",
        "huge": "decimal(38,0)",
        "a b": "struct<`x`:bigint,`y z`:string>",
        "l": "array<struct<`x`:bigint,`y`:string>>",
        "day": "date",
        "o": "string",
        "e": "string",
        "k": "string",
        "m": "array<string>",
        "nan": "string",
        "n": "string",
    }


def test_avro_files_are_proposed_with_the_columns_of_their_schema(tmp_path: Path) -> None:
    """Damage: a user writes fifty columns by hand."""
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "either", "type": ["int", "string"]},
        {"name": "tree", "type": ["null", "ns.r"]},
    ]
    schema = {"type": "record", "name": "r", "namespace": "ns", "fields": fields}
    with (tmp_path / "a.avro").open("wb") as data:
        fastavro.writer(data, fastavro.parse_schema(schema), [])
    (one,) = found(tmp_path).values()
    assert one.columns.ddl == "`id` bigint, `at` timestamp, `tags` array<struct<`key`:string,`value`:array<int>>>"
    assert "column 'either'" in one.note
    assert "column 'tree'" in one.note


def test_a_directory_without_files_and_a_file_that_is_damaged_are_named(tmp_path: Path) -> None:
    """Damage: an operator reads that there is nothing, and not where it was looked for."""
    with pytest.raises(DefinitionError, match="there is no file to read at"):
        found(tmp_path)
    with pytest.raises(DefinitionError, match="only local directories"):
        found("s3://bucket/x")
    (tmp_path / "a.parquet").write_text("no parquet")
    with pytest.raises(SourceError, match=r"a\.parquet"):
        found(tmp_path)
