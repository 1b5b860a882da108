"""Showing: statements that say what there is.  They answer with rows, from the definitions alone, and change nothing.

    SHOW {TABLES | SOURCES | VIEWS | MATERIALIZATIONS | INDEXES | COLLECTIONS | CONNECTIONS | INSTANCES}
    SHOW COLUMNS FROM collection        DESCRIBE collection        DESC collection
    SHOW CREATE name
    EXPLAIN view
    SUBSCRIBE {name | query | (query)}

SUBSCRIBE is here because the shell takes it; its rows have no end, so a program calls `subscribe`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from strandline.controller.language.clauses import Placed
from strandline.controller.language.cursor import QUERY_WORDS, Cursor


class Shown(Enum):
    """What is shown: all items of a kind, or something about one of them."""

    TABLES = "TABLES"
    SOURCES = "SOURCES"
    VIEWS = "VIEWS"
    MATERIALIZATIONS = "MATERIALIZATIONS"
    INDEXES = "INDEXES"
    COLLECTIONS = "COLLECTIONS"
    CONNECTIONS = "CONNECTIONS"
    INSTANCES = "INSTANCES"
    COLUMNS = "COLUMNS"
    CREATE = "CREATE"
    PLAN = "PLAN"


@dataclass(frozen=True, slots=True)
class Show(Placed):
    """SHOW, DESCRIBE or EXPLAIN: ``name`` is the item that it is about; empty where it is about all of a kind."""

    what: Shown
    name: str = ""


@dataclass(frozen=True, slots=True)
class Subscribe(Placed):
    """SUBSCRIBE to ``what``: the name of a collection, or a query."""

    what: str


WORDS: Final = ("SHOW", "DESCRIBE", "DESC", "EXPLAIN", "SUBSCRIBE")
"""What these statements begin with."""
LISTS: Final = tuple(each for each in Shown if each not in {Shown.COLUMNS, Shown.CREATE, Shown.PLAN})
"""What is shown of a whole kind."""
_KINDS: Final = (
    ("TABLE",),
    ("SOURCE",),
    ("VIEW",),
    ("MATERIALIZED", "VIEW"),
    ("MATERIALIZATION",),
    ("INDEX",),
    ("CONNECTION",),
    ("INSTANCE",),
)
"""Kinds that may stand before a name, as elsewhere; the name alone says which item it is."""
_ANY: Final = f"{', '.join(each.value for each in LISTS)}, COLUMNS FROM or CREATE"


def read(cursor: Cursor) -> Show | Subscribe:
    """Take one of these statements.  Raises `DefinitionError` with a position."""
    match cursor.peek():
        case "SUBSCRIBE":
            return _subscribe(cursor)
        case "EXPLAIN":
            cursor.take("EXPLAIN")
            return _about(Shown.PLAN, cursor)
        case "DESC" | "DESCRIBE" as word:
            cursor.take(word)
            return _about(Shown.COLUMNS, cursor)
    cursor.take("SHOW")
    if cursor.accept("COLUMNS"):
        if not cursor.accept("IN"):
            cursor.take("FROM")
        return _about(Shown.COLUMNS, cursor)
    if cursor.accept("CREATE"):
        return _about(Shown.CREATE, cursor)
    cursor.accept("MATERIALIZED")  # VIEWS: there are no others
    known = next((each for each in LISTS if cursor.accept(each.value)), None)
    if known is None:
        raise cursor.fail(_ANY)
    return Show(known)


def _subscribe(cursor: Cursor) -> Subscribe:
    cursor.take("SUBSCRIBE")
    cursor.accept("TO")
    at = cursor.position
    if cursor.peek() not in QUERY_WORDS:
        return Subscribe(cursor.only_name("a collection or a query"), at=at)
    return Subscribe(cursor.rest("a collection or a query").text, at=at)


def _about(what: Shown, cursor: Cursor) -> Show:
    for words in _KINDS:
        more = cursor.peek(len(words)) or cursor.quoted(len(words))  # else the word is the name
        if more and cursor.accept(*words):
            break
    if what is Shown.PLAN and cursor.peek() in QUERY_WORDS:
        instead = "EXPLAIN takes the name of a view; what a query would do as a view, CREATE MATERIALIZED VIEW shows"
        raise cursor.unsupported("EXPLAIN of a query", instead)
    at = cursor.position
    return Show(what, cursor.only_name("a view" if what is Shown.PLAN else "a name"), at=at)
