"""The first record of a CSV file: the names of its columns, or where there is no header how many fields it has."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Final

from strandline.algebra.formats import FileFormat

BLANK: Final = "".join(map(chr, range(33)))
"""What Spark's CSV reader trims of a line to see whether it is empty."""
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line with its end, as Hadoop's reader of text has it."""


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record: the line that it begins at (from 1), the text of that line, and its fields, trimmed."""

    line: int
    text: str
    fields: tuple[str, ...]


def first_record(head: str, form: FileFormat) -> FirstRecord | None:
    r"""Return the first record of a file that begins with ``head``; None: it has no line that is not blank.

    >>> from strandline.algebra.formats import Encoding
    >>> first_record('\n\t\na,"b c", d\r\n1,2,3\n', FileFormat(Encoding.CSV))
    FirstRecord(line=3, text='a,"b c", d', fields=('a', 'b c', 'd'))
    """
    lines = _LINE.findall(head)
    blank = next((n for n, line in enumerate(lines) if line.strip(BLANK)), len(lines))
    lines = lines[blank:]
    if not lines:
        return None
    doubled = form.escape == form.quote
    text = lines[0].rstrip("\r\n")
    fields = next(
        csv.reader(
            io.StringIO("".join(lines) if form.multiline else text, newline=""),
            delimiter=form.delimiter,
            quotechar=form.quote,
            doublequote=doubled,
            escapechar=None if doubled else form.escape,
        )
    )
    return FirstRecord(1 + blank, text, tuple(field.strip() for field in fields))
