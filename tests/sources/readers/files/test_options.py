"""What a definition says about files is understood, or refused by name."""

from __future__ import annotations

import asyncio

import pytest

from strandline.algebra.messages import Encoding, FileFormat
from strandline.errors import DefinitionError
from strandline.options import understood
from strandline.sources.readers.files.options import FileOptions
from strandline.testing.doubles import HandClock
from strandline.wiring.registry import Readers


def found(path, texts):
    """Return what a definition says."""
    return understood("source 's'", FileOptions, {"path": path, **texts})


def test_defaults_are_those_of_a_csv_file_as_people_write_it():
    """Damage: the plain case needs options."""
    plain = found("/d/*.csv", {})
    assert plain.decoding == FileFormat(Encoding.CSV)
    assert (plain.decoding.header, plain.decoding.delimiter, plain.decoding.null) == (True, ",", "")
    assert (plain.settle, plain.retain) == (1_000, True)


def test_every_option_is_understood():
    """Damage: an option is accepted and does nothing."""
    texts = {
        "FORMAT": "csv",
        "header": "FALSE",
        "delimiter": "tab",
        "quote": "'",
        "nulls": "NA",
        "timestamp_format": "yyyy",
        "date_format": "dd",
        "multiline": "yes",
        "settle": "2s",
        "retain": "no",
    }
    full = found("/d", texts)
    assert full.decoding == FileFormat(Encoding.CSV, False, "\t", "'", "'", "NA", "yyyy", "dd", True)
    assert (full.settle, full.retain) == (2_000, False)
    assert found("/d", {"format": "csv", "escape": "\\"}).decoding.escape == "\\"


@pytest.mark.parametrize(
    ("path", "encoding"),
    [
        ("/d/*.csv", "csv"),
        ("/d/*.avro", "avro"),
        ("/d/a.JSONL", "json"),
        ("/d/*.ndjson.gz", "json"),
        ("/d/**/*.parquet", "parquet"),
    ],
)
def test_the_format_is_known_by_the_suffix(path, encoding):
    """Damage: every definition repeats itself."""
    assert found(path, {}).encoding is Encoding(encoding)


@pytest.mark.parametrize(
    ("path", "texts", "message"),
    [
        ("/d", {}, "^source 's': option 'format' is missing"),
        ("/d", {"format": "xml"}, "avro, csv, json, parquet"),
        ("/d", {"format": "csv", "delimeter": ";"}, "did you mean 'delimiter'"),
        ("/d", {"format": "csv", "qqq": ""}, r"'qqq' is not known; it takes path \(required\), format"),
        ("/d", {"format": "json", "header": "true"}, "'header' does not go with format 'json'"),
        ("/d", {"format": "parquet", "nulls": "NA"}, "'nulls' does not go with format 'parquet'"),
        ("/d", {"format": "csv", "header": "maybe"}, "'header' is 'maybe': it can be true or false"),
        ("/d", {"format": "csv", "delimiter": "||"}, "one character"),
        ("/d", {"format": "csv", "settle": "soon"}, "duration"),
        ("gs://bucket/x.csv", {}, "a local directory or s3:// can be watched, not gs"),
        ("/d/*.csv", {"region": "x"}, "'region' goes with s3:// only"),
        ("/d/*.csv", {"on_durable": "archive"}, "go together"),
        ("/d/*.csv", {"archive": "/e"}, "go together"),
        ("/d/*.csv", {"on_durable": "archive", "archive": "/d/old"}, "would come back"),
        ("s3://b/d/*.csv", {"on_durable": "archive", "archive": "s3://b/d/old"}, "would come back"),
        ("s3://b/d/*.csv", {"on_durable": "archive", "archive": "s3://c/old"}, "the same bucket"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_would_be(path, texts, message):
    """Damage: a typing error silently changes how a million rows are read."""
    with pytest.raises(DefinitionError, match=message):
        found(path, texts)


@pytest.mark.parametrize(
    ("path", "archive"), [("/d/*.csv", "/d/_old"), ("/d/*.csv", "/e"), ("s3://b/d/*.csv", "s3://b/d/_old")]
)
def test_an_archive_is_where_no_files_are_looked_for(path, archive):
    """Damage: what was archived is ingested again, or a good place for it is refused."""
    found = understood("s", FileOptions, {"path": path, "on_durable": "archive", "archive": archive})
    assert not found.stays
    assert understood("s", FileOptions, {"path": path}).stays


def test_a_directory_that_is_not_there_is_said_when_the_source_is_created(tmp_path):
    """Damage: a mistyped path is accepted, and the source has a problem that only `status` shows."""
    connectors = Readers(HandClock(0), None, None, None)

    def ask(path):
        asyncio.run(connectors.ask("s", "files", {"path": str(path), "format": "csv"}))

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.csv").write_text("a\n1\n")
    for there in (tmp_path / "in", tmp_path / "in" / "*" / "x*.csv", tmp_path / "in" / "one.csv"):
        ask(there)
    for path, root in (("inn", "inn"), ("inn/*.csv", "inn"), ("in/two.csv", "in/two.csv")):
        with pytest.raises(DefinitionError, match=f"directory '{tmp_path}/{root}' does not exist; create it; or"):
            ask(tmp_path / path)
    asyncio.run(connectors.ask("s", "files", {"path": "s3://bucket/in", "format": "csv"}))
