"""A CSV line is one record of UTF-8, or an error: bytes are kept as they are, or the line is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import redirect_stdout
from io import StringIO

import pytest

from strandline.algebra.messages import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import ERROR, TIME, Column, Schema
from strandline.engine.files import decoder
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.frames.rows import dataframe, unwrap

pytestmark = pytest.mark.spark

PAIR = Schema((Column("id", "int"), Column("v", "string")))
NOT_UTF8 = "it is not UTF-8"


@pytest.fixture
def decode(spark, tmp_path):
    """Decode one file; return its good rows, and line and reason of each error."""

    def run(content, form=FileFormat(Encoding.CSV), name="a.csv"):  # noqa: B008 - it is a value
        path = tmp_path / name
        path.write_bytes(content)
        dated = [DatedFile(str(path), name, len(content), 7)]
        found = {}
        for locate in (False, True):
            rows = asyncio.run(SparkFiles(spark).decode(dated, PAIR, form, locate=locate))
            found[locate] = dataframe(unwrap(rows), spark).toArrow().to_pylist()
        good = {locate: [(r["id"], r["v"]) for r in rows if r[ERROR] is None] for locate, rows in found.items()}
        assert good[False] == good[True], "locating changes good rows"
        assert len(found[False]) == len(found[True])
        errors = [json.loads(row[ERROR]) for row in found[True] if row[ERROR] is not None]
        return good[True], sorted((error["line"], error["reason"]) for error in errors)

    return run


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_line_that_is_not_utf_8_is_an_error_and_the_others_flow(decode, name):
    """Damage: a byte that is no UTF-8 becomes U+FFFD, and the row looks right."""
    content = b'id,v\n13,\xef\xbf\xbd\n14,\xe9\n\n15,"\xc3\xa9,\xf0\x9f\x98\x80"\n\xff,a\n'
    good, errors = decode(gzip.compress(content) if name.endswith("gz") else content, name=name)
    assert good == [(13, "\ufffd"), (15, "é,😀")]
    assert errors == [(3, NOT_UTF8), (6, NOT_UTF8)]


def test_without_a_header_the_first_line_is_a_record(decode):
    """Damage: the first row of a file is lost where another line is not UTF-8."""
    form = FileFormat(Encoding.CSV, header=False, delimiter="§", quote="'")
    good, errors = decode("\ufeff1§'a§b'\n".encode() + b"2\xc2\xa7\xe9\n", form)
    assert good == [(1, "a§b")]
    assert errors == [(2, NOT_UTF8)]


def test_a_file_whose_records_span_lines_is_one_error(decode):
    """Damage: a byte that is no UTF-8 becomes U+FFFD, and the row looks right."""
    form = FileFormat(Encoding.CSV, multiline=True)
    assert decode(b'id,v\n1,"a\nb"\n2,"\xc3\xa9"\n', form) == ([(1, "a\nb"), (2, "é")], [])
    good, [(line, reason)] = decode(b'id,v\n1,"a\nb"\n2,\xe9\n', form)
    assert good == []
    assert line == 4
    assert reason.startswith(NOT_UTF8)


def test_a_file_that_is_not_utf_8_changes_no_row_of_another(spark, tmp_path):
    """Damage: a file is left out, or read twice, because one that came with it is not UTF-8."""
    contents = {"a.csv": b"id,v\n1,a\n", "é [1]%.csv": b"id,v\n2,\xe9\n3,b\n", "c.csv": b"id,v\n4,\xc3\xa9\n"}
    dated = []
    for number, (name, content) in enumerate(contents.items()):
        (tmp_path / name).write_bytes(content)
        dated.append(DatedFile(str(tmp_path / name), name, len(content), number))
    for locate in (False, True):
        rows = asyncio.run(SparkFiles(spark).decode(dated, PAIR, FileFormat(Encoding.CSV), locate=locate))
        found = dataframe(unwrap(rows), spark).toArrow().to_pylist()
        good = sorted((row["id"], row["v"], row[TIME]) for row in found if row[ERROR] is None)
        assert good == [(1, "a", 0), (3, "b", 1), (4, "é", 2)]
        assert [row[TIME] for row in found if row[ERROR] is not None] == [1]


@pytest.mark.parametrize(("value", "by_line"), [("é", False), ("\ufffd", False), ("\udce9", True)])
def test_only_a_file_that_is_not_utf_8_is_parsed_line_by_line(spark, tmp_path, monkeypatch, value, by_line):
    """Damage: decoding a large file takes twice as long, for bytes that it does not have."""
    content = f"id,v\n1,{value}\n".encode(errors="surrogateescape")
    (tmp_path / "a.csv").write_bytes(content)
    dated = [DatedFile(str(tmp_path / "a.csv"), "a.csv", len(content), 7)]
    monkeypatch.setattr(decoder, "is_small", lambda files, form: False)
    rows = asyncio.run(SparkFiles(spark).decode(dated, PAIR, FileFormat(Encoding.CSV), locate=False))
    with redirect_stdout(StringIO()) as text:
        dataframe(unwrap(rows), spark).explain(extended=True)
    assert ("from_csv" in text.getvalue()) == by_line


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_a_job_reads_lines_as_this_process_does(decode, monkeypatch, ending):
    """Damage: what a row is depends on the size of its file."""
    lines = [b"id,v", b"1,a", b' 2," b ,c"', b"\x003,\x00", b"\t", b"4,\xc2\x85", b"id,v", b'5,"a""b"', b'6,"open']
    content = b"\xef\xbb\xbf" + ending.join(lines) + ending
    here = decode(content)
    monkeypatch.setattr(decoder, "is_small", lambda files, form: False)
    assert decode(content) == here
    good, errors = here
    assert decode(content + b"7,\xe9" + ending) == (good, [*errors, (len(lines) + 1, NOT_UTF8)])
