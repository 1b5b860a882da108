"""What a definition says about files is understood, or refused by name."""

from __future__ import annotations

import pytest

from strandline.algebra.formats import Encoding, FileFormat
from strandline.errors import DefinitionError
from strandline.sources.file_options import SETTLE_MS_DEFAULT, parse


def test_defaults_are_those_of_a_csv_file_as_people_write_it():
    """Damage: the plain case needs options."""
    found = parse("/d/*.csv", {})
    assert found.format == FileFormat(Encoding.CSV)
    assert (found.format.header, found.format.delimiter, found.format.null) == (True, ",", "")
    assert (found.settle_ms, found.retain) == (SETTLE_MS_DEFAULT, True)


def test_every_option_is_understood():
    """Damage: an option is accepted and does nothing."""
    words = {
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
    found = parse("/d", words)
    assert found.format == FileFormat(Encoding.CSV, False, "\t", "'", "'", "NA", "yyyy", "dd", True)
    assert (found.settle_ms, found.retain) == (2_000, False)
    assert parse("/d", {"format": "csv", "escape": "\\"}).format.escape == "\\"


@pytest.mark.parametrize(
    ("path", "encoding"),
    [("/d/*.csv", "csv"), ("/d/a.JSONL", "json"), ("/d/*.ndjson.gz", "json"), ("/d/**/*.parquet", "parquet")],
)
def test_the_format_is_known_by_the_suffix(path, encoding):
    """Damage: every definition repeats itself."""
    assert parse(path, {}).format.encoding is Encoding(encoding)


@pytest.mark.parametrize(
    ("path", "words", "message"),
    [
        ("/d", {}, "'format' is missing"),
        ("/d", {"format": "xml"}, "csv, json, parquet"),
        ("/d", {"format": "csv", "delimeter": ";"}, "did you mean 'delimiter'"),
        ("/d", {"format": "csv", "qqq": ""}, "unknown; it can be date_format"),
        ("/d", {"format": "json", "header": "true"}, "'header' does not go with format 'json'"),
        ("/d", {"format": "parquet", "nulls": "NA"}, "'nulls' does not go with format 'parquet'"),
        ("/d", {"format": "csv", "header": "maybe"}, "header = 'maybe': it can be true or false"),
        ("/d", {"format": "csv", "delimiter": "||"}, "one character"),
        ("/d", {"format": "csv", "settle": "soon"}, "duration"),
        ("s3://bucket/x.csv", {}, "s3"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_would_be(path, words, message):
    """Damage: a typing error silently changes how a million rows are read."""
    with pytest.raises(DefinitionError, match=message):
        parse(path, words)
