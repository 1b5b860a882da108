"""Commands: what begins with a backslash: which there are, what each does, and how one is read."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from strandline.errors import InvalidUsage

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
