"""The page on formats says what each of its messages becomes."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from strandline.algebra import notation, types
from strandline.algebra.messages import RAW, Encoding, MessageEncoding, MessageFormat
from strandline.algebra.schema import ERROR, TIME, Column, Schema
from strandline.engine.frames.rows import Local, unwrap
from strandline.engine.messages.decoder import SparkMessages

PAGE: Final = (Path(__file__).resolve().parent.parent / "docs" / "formats.md").read_text()
EXAMPLES: Final = re.findall(r"^\| `(json|csv|text)` \| `(.+?)` \| (?:`(\(.*\))`|(.+?)) \|$", PAGE, re.MULTILINE)
EXAMPLES_MIN: Final = 12


@pytest.mark.spark
def test_an_example_becomes_what_the_page_says(spark) -> None:
    """Damage: an author trusts that a record is a row, and it is an error."""
    assert len(EXAMPLES) >= EXAMPLES_MIN
    decoder = SparkMessages(spark)
    for encoding, message, row, reason in EXAMPLES:
        columns = (Column("k", "int"), Column("v", "string"))
        schema = Schema(columns[1:] if encoding == "text" else columns)
        raw = pa.table(
            {
                **{name: pa.nulls(1) for name in RAW},
                "topic": ["t"],
                "partition": ["0"],
                "offset": [0],
                "value": [message.encode()],
                TIME: [1],
            }
        )
        form = MessageFormat(MessageEncoding(encoding))
        found = unwrap(asyncio.run(decoder.messages(raw, schema, form, locate=True)))
        assert isinstance(found, Local)
        (given,) = found.table.to_pylist()
        if row:
            assert tuple(given[name] for name in schema.names) == ast.literal_eval(row), message
        else:
            assert json.loads(given[ERROR])["reason"] == reason, message


@pytest.mark.parametrize(
    ("name", "kind"),
    [("BOOLEAN", "boolean"), ("INT", "int"), ("DECIMAL(p, s)", "decimal(9,2)"), ("DOUBLE", "double"), ("DATE", "date")],
)
def test_the_texts_of_a_type_are_what_the_page_says(name: str, kind: str) -> None:
    """Damage: an author sends what the page allows, and every record is an error."""
    (row,) = re.findall(rf"^\|[^|]*`{re.escape(name)}`[^|]* \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)
    read = partial(notation.value, types.parse(name, kind))
    good, bad = ({text: read(text) is not None for text in re.findall("`(.+?)`", cell)} for cell in row)
    assert set(good.values()) == {True}, good
    assert set(bad.values()) == {False}, bad


def test_the_page_has_every_format() -> None:
    """Damage: what a format accepts is nowhere said."""
    for encoding in (*Encoding, *MessageEncoding):
        assert f"\n| `{encoding.value}` | " in PAGE
