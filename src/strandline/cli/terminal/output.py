"""The output of commands: text and tables on standard output; with ``--json``, one document per line.

Errors and progress go to standard error, so that standard output can be piped.

All foreign text (data, names, messages of other programs) passes `printable` on its way to a terminal.  Otherwise a
control character in a row could move the cursor, hide text or type into the terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strandline.algebra.notation import readable

WIDTH_UNFOLDED: Final = 100_000


def _console() -> Console:
    """Return a console on standard output; if that is no terminal, lines are not folded."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH_UNFOLDED)


@dataclass(frozen=True)
class Output:
    """Prints results.  ``json``: as documents."""

    json: bool
    console: Console = field(default_factory=_console)
    progress: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True))

    def result(self, document: Mapping[str, Any], text: str | Table) -> None:
        """Print one result: ``document`` with ``--json``, else ``text``."""
        if self.json:
            sys.stdout.write(as_json(document) + "\n")
            sys.stdout.flush()
        elif isinstance(text, str):
            self.console.print(Text(printable(text)))
        else:
            self.console.print(text)

    def note(self, text: str) -> None:
        """Print a note, which is not a result, on standard error."""
        self.progress.print(Text(printable(text)))

    def log(self, event: str, **facts: object) -> None:
        """Write a log line to standard error."""
        import structlog  # no answer to a question needs it

        stamp = structlog.processors.TimeStamper(fmt="iso")
        render = structlog.processors.LogfmtRenderer(key_order=("timestamp", "event"))
        logger = structlog.wrap_logger(structlog.PrintLogger(sys.stderr), processors=(stamp, render))
        said = {name: printable(fact, lines=False) if isinstance(fact, str) else fact for name, fact in facts.items()}
        logger.info(event, **said)


def printable(text: str, *, lines: bool = True) -> str:
    r"""Return ``text`` with unprintable characters escaped; ``lines``: keep line breaks and tabs.

    >>> printable("a\x1b[2Jb\u202ec"), printable("two\nlines"), printable("one\nline", lines=False)
    ('a\\x1b[2Jb\\u202ec', 'two\nlines', 'one\\nline')
    """
    return "".join(c if c.isprintable() or (lines and c in "\n\t") else repr(c)[1:-1] for c in text)


def verb(statement: str) -> str:
    """Return a kind of statement as a statement says it.

    >>> verb("CreateView")
    'CREATE VIEW'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", statement).upper()


def outcome(statement: str, at: object, *, replaces: bool = False) -> str:
    """Return what is said of a statement that was done; ``at``: when it was committed, None: it changed definitions.

    ``replaces``: it defined a view that may take the place of another one, later.

    >>> outcome("DropReplica", None), outcome("Insert", "12:00")
    ('DROP REPLICA: done', 'INSERT: committed at 12:00')
    """
    if replaces:
        return f"{verb(statement)}: accepted; a view of this name answers as before until the new query holds as much"
    return f"{verb(statement)}: done" if at is None else f"{verb(statement)}: committed at {at}"


def as_json(document: Mapping[str, Any]) -> str:
    """Return one line of JSON; types that JSON lacks (decimals, times) as text; NaN and infinities as null.

    >>> as_json({"a": float("nan")})
    '{"a":null}'
    """
    return msgspec.json.encode(document, enc_hook=str).decode()


def rows_document(rows: pa.Table) -> dict[str, Any]:
    """Return rows as a document: ``columns`` (names and types) and ``rows``, an object each.

    Where two columns have one name, each is called after it by its place, as `a`, `a_2`: an object has a name once.

    >>> rows_document(pa.table({"n": [1, None]}))
    {'columns': [{'name': 'n', 'type': 'int64'}], 'rows': [{'n': 1}, {'n': None}]}
    """
    columns = [
        {"name": name, "type": str(kind)} for name, kind in zip(rows.column_names, rows.schema.types, strict=True)
    ]
    names = _apart(rows.column_names)
    for column, name in zip(columns, names, strict=True):
        column["name"] = name
    return {"columns": columns, "rows": readable(rows.rename_columns(names)).to_pylist()}


def _apart(names: Sequence[str]) -> list[str]:
    """Return names of which each is there once.

    >>> _apart(["a", "a_2", "a", "b"])
    ['a', 'a_2', 'a_3', 'b']
    """
    taken, found = set(names), list[str]()
    for name in names:
        own, number = name, 1
        while own in found or (own != name and own in taken):
            number += 1
            own = f"{name}_{number}"
        found.append(own)
    return found


def rows_table(rows: pa.Table) -> Table:
    """Return rows as a table for people."""
    lists = [column.to_pylist() for column in readable(rows).columns]
    numeric = [
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        for kind in rows.schema.types
    ]
    return table(rows.column_names, zip(*lists, strict=True), numeric)


def table(names: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[bool] | None = None) -> Table:
    """Return a table for people; None is shown as NULL, columns of numbers (``right``) are right-aligned."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for n, name in enumerate(names):
        shown.add_column(
            Text(printable(name, lines=False)), justify="right" if right and right[n] else "left", overflow="fold"
        )
    for row in rows:
        shown.add_row(*(Text("NULL", style="dim") if value is None else _cell(value) for value in row))
    return shown


def _cell(value: object) -> Text:
    return Text(printable(str(value), lines=False))
