"""Which fields the records of a file have."""

from __future__ import annotations

from pathlib import Path

import fastavro
import pytest

from strandline.algebra.messages import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import Column, Schema
from strandline.engine.files.paths import FileBytes
from strandline.engine.files.small import group

PAIR = Schema((Column("k", "int"), Column("v", "string")))


def test_an_avro_file_with_two_columns_of_the_name_is_an_error(tmp_path: Path) -> None:
    """Damage: one of two columns is read, and which one is not known."""
    fields = [{"name": name, "type": "int"} for name in ("k", "K", "v")]
    with (tmp_path / "a.avro").open("wb") as data:
        fastavro.writer(data, fastavro.parse_schema({"type": "record", "name": "r", "fields": fields}), [])
    file = DatedFile(str(tmp_path / "a.avro"), "a.avro", 1, 7)
    layouts, (unusable,) = group([file], PAIR, FileFormat(Encoding.AVRO), FileBytes())
    assert not layouts
    assert unusable.reason == "it has column `k` 2 times; it has k, K, v"


@pytest.mark.parametrize(
    ("delimiter", "header", "fields"),
    [
        ("\t", "\tk\tv", 3),
        (" ", " k v", 3),
        (",", "\x0b\u2028,k,v", 3),
        (",", "a\x0bb\u2028c\x85d,k,v", 3),
        (",", "k,v", 2),
    ],
)
def test_the_header_of_csv_is_the_whole_first_line_that_is_not_blank(
    tmp_path: Path, delimiter: str, header: str, fields: int
) -> None:
    """Damage: no row is read of a table that pandas wrote with tabs: the first column of its header has no name."""
    path = tmp_path / "a.csv"
    path.write_bytes(f"\ufeff \t\r\n\r{header}\n{delimiter.join('0' * fields)}\n".encode())
    file = DatedFile(str(path), path.name, path.stat().st_size, 7)
    ([layout], unusable) = group([file], PAIR, FileFormat(Encoding.CSV, delimiter=delimiter), FileBytes())
    assert not unusable
    assert (len(layout.names), layout.names[-2:], layout.header_lines) == (fields, ("k", "v"), (3,))


@pytest.mark.parametrize(
    ("header", "declared", "found"),
    [
        ("id, a,a", ("a", " a"), ("id", " a", "a")),
        ("id, a,b ", ("a", "b"), ("id", "a", "b")),
        ("id, A ,a", (" a ",), ("id", " a ", "__undeclared_2")),
        ("id,\t,\u00a0", ("\t", "\u00a0"), ("id", "\t", "\u00a0")),
        ('id,"a\nb", a', ("a\nb", "a"), ("id", "a\nb", "a")),
    ],
)
def test_a_field_names_the_column_that_is_called_just_so_and_else_the_one_without_blanks(
    tmp_path: Path, header: str, declared: tuple[str, ...], found: tuple[str, ...]
) -> None:
    """Damage: a column whose name has blanks at its ends is found in no file, or another one's values stand in it."""
    path = tmp_path / "a.csv"
    path.write_bytes(f"{header}\n1,2,3\n".encode())
    schema = Schema(tuple(Column(name, "int") for name in ("id", *declared)))
    form = FileFormat(Encoding.CSV, multiline="\n" in header)
    ([layout], unusable) = group([DatedFile(str(path), path.name, path.stat().st_size, 7)], schema, form, FileBytes())
    assert not unusable
    assert layout.names == found


def test_two_fields_of_one_column_are_refused_though_one_has_blanks(tmp_path: Path) -> None:
    """Damage: one of two columns is read as the declared one, and which one is not known."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"id, a,a\n1,2,3\n")
    schema = Schema((Column("id", "int"), Column("a", "int")))
    layouts, (refused,) = group([DatedFile(str(path), "a.csv", 15, 7)], schema, FileFormat(Encoding.CSV), FileBytes())
    assert not layouts
    assert "column `a` 2 times" in refused.reason
