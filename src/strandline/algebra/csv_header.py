"""The first record of a CSV file: the names of its columns, or where there is no header how many fields it has."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from strandline.algebra.formats import FileFormat

BLANK: Final = "".join(map(chr, range(33)))
"""What Spark's CSV reader trims of a line to see whether it is empty."""
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line with its end, as Hadoop's reader of text has it."""


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record: the line that it begins at (from 1), the text of that line, and its fields as written.

    ``ends``: the line end behind it, where a quoted field has another one before that; else empty.
    """

    line: int
    text: str
    fields: tuple[str, ...]
    ends: str = ""

    def names(self, declared: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the column that each field names, where columns are ``declared``.

        A field names the declared column that is called just so, without regard to case.  Any other one is taken
        without the blanks around it, which many programs write behind a delimiter.

        >>> record = FirstRecord(1, "id, a,b ", ("id", " a", "b "))
        >>> record.names(["ID", " A"]), record.names()
        (('id', ' a', 'b'), ('id', 'a', 'b'))
        """
        exact = {name.lower() for name in declared}
        return tuple(field if field.lower() in exact else field.strip() for field in self.fields)


def first_record(head: str, form: FileFormat) -> FirstRecord | None:
    r"""Return the first record of a file that begins with ``head``; None: it has no line that is not blank.

    >>> from strandline.algebra.formats import Encoding
    >>> first_record('\n\t\na,"b c", d\r\n1,2,3\n', FileFormat(Encoding.CSV))
    FirstRecord(line=3, text='a,"b c", d', fields=('a', 'b c', ' d'), ends='')
    """
    lines = _LINE.findall(head)
    blank = next((n for n, line in enumerate(lines) if line.strip(BLANK)), len(lines))
    lines = lines[blank:]
    if not lines:
        return None
    doubled = form.escape == form.quote
    text = lines[0].rstrip("\r\n")
    read = csv.reader(
        io.StringIO("".join(lines) if form.multiline else text, newline=""),
        delimiter=form.delimiter,
        quotechar=form.quote,
        doublequote=doubled,
        escapechar=None if doubled else form.escape,
    )
    fields = next(read)
    ends = _end(lines[read.line_num - 1])
    return FirstRecord(1 + blank, text, tuple(fields), ends if ends != _end(lines[0]) else "")


def _end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]
