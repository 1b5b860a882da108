"""Definition: an item as the statement that would create it again.

The columns that a source has got since come by a second statement: what was read before they came has none of them.
Options are what the catalog keeps: of a secret, its reference.  A clause of a source comes back as the option that it
stands for, and the options of a connection stay the connection's.  What views that were dropped from a materialization
have left is no part of its definition, and is said apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from sqlglot import exp

from strandline.algebra.scalar import Faithful
from strandline.algebra.schema import Schema, quote
from strandline.controller.language.statements import REFERENCE
from strandline.controller.location.items import (
    BoundTable,
    Connection,
    IndexItem,
    InstanceItem,
    Item,
    LeftTable,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
    made_with,
)

_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


def definition(item: Item) -> str:
    """Return the statement that creates ``item``, in several lines, without a semicolon at the end.

    >>> print(definition(IndexItem("by_id", "orders", ("id", "a day"))))
    CREATE INDEX by_id ON orders (id, `a day`)
    """
    match item:
        case Table():
            return (
                f"CREATE TABLE {named(item.name)} ({columns(item.schema, item.comments)}){_history(item.keep_history)}"
            )
        case SourceTable():
            options = _options({REFERENCE: item.reference, **item.options})
            first, later = _in_turn(item, "TABLE")
            head = f"CREATE TABLE {named(item.name)} ({columns(first, item.comments)})"
            return f"{head}\nFROM SOURCE {named(item.source)} {options}{_history(item.keep_history)}{later}"
        case Source():
            first, later = _in_turn(item, "SOURCE")
            head = f"CREATE SOURCE {named(item.name)}{_instance(item.instance)} ({columns(first, item.comments)})"
            return f"{head}\nFROM {item.connector} {_options(item.options)}{_history(item.keep_history)}{later}"
        case SharedSource():
            head = f"CREATE SOURCE {named(item.name)}{_instance(item.instance)}"
            return f"{head}\nFROM {item.connector} {_options(item.options)}"
        case View():
            refresh = "" if item.refresh is None else f"\nREFRESH {item.refresh.clause}"
            head = f"CREATE MATERIALIZED VIEW {named(item.name)}{_instance(item.instance)}"
            return f"{head}{refresh}{_history(item.keep_history)} AS\n{item.sql.strip()}"
        case Materialization():
            head = f"CREATE MATERIALIZATION {named(item.name)}{_instance(item.instance)} INTO {item.endpoint}"
            return f"{head} OPTIONS {_options(item.options)}\nAS {', '.join(map(_binding, item.bindings))}"
        case IndexItem():
            head = f"CREATE INDEX {named(item.name)} ON {named(item.collection)}"
            return f"{head} ({', '.join(map(named, item.key))}){_instance(item.instance)}"
        case Connection():
            return f"CREATE CONNECTION {named(item.name)} TO {item.system} {_options(item.options)}"
        case InstanceItem():
            replicas = ", ".join(f"{named(name)} {literal(address)}" for name, address in item.replicas.items())
            return f"CREATE INSTANCE {named(item.name)} REPLICAS ({replicas})"


def columns(schema: Schema, comments: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return columns as a statement has them; ``comments``: by the column's name in lower case."""
    said = {name: f" COMMENT {literal(text)}" for name, text in comments.items()}
    return ", ".join(f"{named(column.name)} {column.type}{said.get(column.name.lower(), '')}" for column in schema)


def _in_turn(item: Source | SourceTable, kind: str) -> tuple[Schema, str]:
    """Return the columns that a source was created with, and the statement for those that it has got since."""
    first = made_with(item)
    later = Schema(item.schema.columns[len(first.columns) :])
    return (
        first,
        f";\nALTER {kind} {named(item.name)} ADD COLUMNS ({columns(later, item.comments)})" if later.columns else "",
    )


def _binding(bound: BoundTable) -> str:
    key = f" KEY ({', '.join(map(named, bound.key))})" if bound.key else ""
    return f"{named(bound.collection)} TO {named(bound.table)}{key}"


def _instance(name: str) -> str:
    return f" IN INSTANCE {named(name)}" if name else ""


def _history(interval: str | None) -> str:
    return "" if interval is None else f"\nKEEP HISTORY FOR {literal(interval)}"


def _options(options: Mapping[str, str]) -> str:
    return f"({', '.join(f'{named(name)} = {literal(text)}' for name, text in options.items())})"


def said_of_left(item: Materialization, before: Materialization | None = None) -> Iterator[str]:
    """Yield what is to be known of each table that a dropped view has left, or of those since ``before``."""
    for left in item.left:
        if before is not None and left in before.left:
            continue
        place = f"{left.bound.table!r} of {item.endpoint}"
        if left.stuck:
            yield f"what {left.name!r} has put into {place} stays, and only the endpoint's own tools remove it"
        elif left.empties:
            yield f"the rows of {left.name!r} are taken out of {place}, which stays there"
        else:
            yield f"the rows of {left.name!r} stay in {place}; {_removal(item, left)} takes them out"


def _removal(item: Materialization, left: LeftTable) -> str:
    """Return the statement that takes out what a dropped view has left."""
    return f"ALTER MATERIALIZATION {named(item.name)} DROP VIEW {named(left.name)} REMOVE ROWS"


def literal(text: str) -> str:
    """Return a text as SQL has it, in quotes.

    >>> literal("a day")
    "'a day'"
    """
    return exp.Literal.string(text).sql("spark")


def named(name: str) -> str:
    """Return a name, in backquotes unless it is a word that needs none.

    >>> named("orders"), named("placed at"), named("select")
    ('orders', '`placed at`', '`select`')
    """
    plain = _PLAIN.issuperset(name.lower()) and not name[:1].isdigit()
    return name if plain and name.upper() not in Faithful.Tokenizer.KEYWORDS else quote(name)
