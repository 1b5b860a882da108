r"""The shell's commands, which begin with a backslash: their names, effects and syntax, and what ``\d NAME`` shows.

``\d NAME`` shows an item's columns, the items that it reads and that read it, and its definition.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from rich.text import Text

from strandline.cli.shell.completion import coloured
from strandline.cli.shell.tables import FAINT, HEAD, Look, lines
from strandline.cli.terminal.output import printable
from strandline.cli.terminal.standing import written_by
from strandline.controller.introspection.definition import named
from strandline.errors import InvalidUsage
from strandline.frontier import told

HELP: Final = (
    (r"\d", "", "the collections: tables, sources and views"),
    (r"\d", "NAME", "what an item is: its columns, what it reads, its indexes, its definition"),
    (r"\dt", "", "the tables"),
    (r"\ds", "", "the sources"),
    (r"\dv", "", "the views"),
    (r"\dm", "", "the materializations"),
    (r"\di", "", "the indexes"),
    (r"\status", "", "how fresh everything is, and what stands still"),
    (r"\watch", "[SECONDS]", "run the last query again and again, every 2 seconds, until Ctrl-C"),
    (r"\x", "[on | off]", "show one value a line"),
    (r"\limit", "[N | off]", "how many rows of an answer are shown"),
    (r"\timing", "[on | off]", "say how long each statement took"),
    (r"\i", "FILE", "run the statements of a file"),
    (r"\o", "[FILE]", "write answers to a file, whole; without FILE, show them here again"),
    (r"\?", "", "this list"),
    (r"\q", "", "leave; so does Ctrl-D"),
)
"""Each command, what it takes, and what it does."""
NAMES: Final = tuple({name: about for name, _, about in reversed(HELP)}.items())[::-1]
LISTS: Final = {
    r"\d": "COLLECTIONS",
    r"\dt": "TABLES",
    r"\ds": "SOURCES",
    r"\dv": "VIEWS",
    r"\dm": "MATERIALIZATIONS",
    r"\di": "INDEXES",
}
"""What a command lists that is given no name."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, as `HELP` names it, and what it was given."""

    name: str
    argument: str


def read(line: str) -> Command:
    r"""Return the command in a line.

    >>> read(r"\d  `a b`;"), read(r"\watch")
    (Command(name='\\d', argument='`a b`'), Command(name='\\watch', argument=''))
    >>> read(r"\wach")
    Traceback (most recent call last):
        ...
    strandline.errors.InvalidUsage: there is no command \wach; did you mean \watch? \? lists all

    Raises `InvalidUsage` if there is no such command.
    """
    name, _, argument = line.strip().partition(" ")
    name = name.rstrip(";") or name
    known = [each for each, _ in NAMES]
    if name in {r"\h", r"\help"}:
        name = r"\?"
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ";"
        raise InvalidUsage(f"there is no command {name}{hint} \\? lists all")
    return Command(name, argument.strip().rstrip(";").strip())


def switched(command: Command, before: bool) -> bool:
    r"""Return what a switch is set to: what is said, or the other.

    >>> switched(Command(r"\x", ""), False), switched(Command(r"\x", "OFF"), False)
    (True, False)
    """
    match command.argument.lower():
        case "":
            return not before
        case "on" | "true":
            return True
        case "off" | "false":
            return False
    raise InvalidUsage(f"{command.name} takes on, off or nothing, not {command.argument!r}")


def limited(command: Command) -> int | None:
    """Return how many rows are to be shown; None: all.  Raises `InvalidUsage` for another argument."""
    text = command.argument.lower()
    if text in {"off", "all", "none"}:
        return None
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise InvalidUsage(f"{command.name} takes a number of rows, or off, not {command.argument!r}")


def seconds(command: Command, default: float) -> float:
    """Return a number of seconds.  Raises `InvalidUsage` for another argument."""
    try:
        found = float(command.argument or default)
    except ValueError:
        found = 0.0
    if not 0.1 <= found <= 86_400:
        raise InvalidUsage(f"{command.name} takes a number of seconds, 0.1 or more, not {command.argument!r}")
    return found


Ask = Callable[[str], pa.Table]
"""Returns the rows that a statement answers with."""
_LISTS: Final = ("COLLECTIONS", "SOURCES", "MATERIALIZATIONS", "INDEXES", "CONNECTIONS", "INSTANCES")
_KIND: Final = {"SOURCES": "source", "INDEXES": "index"}


def described(name: str, ask: Ask, look: Look) -> Iterator[Text]:
    """Yield the lines about an item.  Raises `InvalidUsage` if there is none with the name."""
    lists = {what: ask(f"SHOW {what}").to_pylist() for what in _LISTS}
    wanted = name.strip("`").replace("``", "`").lower()
    kinds = {
        row["name"].lower(): (row["name"], row.get("kind") or _KIND.get(what, what.lower().removesuffix("s")))
        for what, rows in reversed(lists.items())
        for row in rows
    }
    if wanted not in kinds:
        raise InvalidUsage(f"there is no item {name!r}; \\d lists the collections")
    found, kind = kinds[wanted]
    yield Text.assemble((kind, ""), " ", (printable(found, lines=False), HEAD))
    if any(row["name"] == found for row in lists["COLLECTIONS"]):
        columns = ask(f"SHOW COLUMNS FROM {named(found)}")
        commented = columns.column("comment").null_count < columns.num_rows
        yield from lines(columns if commented else columns.drop_columns(["comment"]), look)
    views = ask("SHOW VIEWS").to_pylist()
    about = {
        "indexes": [f"{row['name']} ({row['columns']})" for row in lists["INDEXES"] if row["collection"] == found],
        "read by": [row["name"] for row in views if found in _list(row["reads"])],
        "pushed by": [row["name"] for row in lists["MATERIALIZATIONS"] if found in _list(row["collections"])],
        "used by": [row["name"] for row in lists["SOURCES"] if found in _list(row["connections"])],
    }
    for what, names in about.items():
        if names:
            yield Text.assemble((f"{what}: ", FAINT), printable(", ".join(names), lines=False))
    yield coloured(printable(ask(f"SHOW CREATE {named(found)}").column("statement")[0].as_py() + ";"))


def standing(found: Mapping[str, Any], look: Look) -> Iterator[Text]:
    """Yield the lines about how each collection is, and what stands still and why; ``found``: what `status` returns."""
    columns = ("collection", "phase", "lag", "errors", "problem")
    rows: list[tuple[Any, ...]] = [
        (name, each["phase"], told(each["lag"]), (each.get("errors") or {}).get("rows"), each.get("problem"))
        for name, each in found["collections"].items()
    ]
    known = {name.lower() for name in found["collections"]}
    rows += [(name, None, None, None, why) for name, why in found["problems"].items() if name.lower() not in known]
    yield from lines(pa.table({name: pa.array([row[n] for row in rows]) for n, name in enumerate(columns)}), look)
    for name, what in found["waiting"].items():
        yield Text.assemble((f"{printable(name, lines=False)}: ", FAINT), printable(what, lines=False))
    yield Text(f"({written_by(found)})", FAINT)


def helped() -> Iterator[Text]:
    """Yield the lines that say which commands there are."""
    for name, argument, about in HELP:
        yield Text.assemble((f" {name} {argument}".ljust(20), HEAD), about)
    yield Text(
        " A statement ends with ; and may have several lines.  Tab completes, Up recalls, Ctrl-C cancels.", FAINT
    )


def _list(text: str | None) -> list[str]:
    return text.split(", ") if text else []
