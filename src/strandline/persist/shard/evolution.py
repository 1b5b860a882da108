"""Schemas of a shard over time: what a column may become, so that no stored part has to be rewritten.

A read takes every part, however old, under the newest schema, by column name: a column that a part lacks is NULL, a
narrower number is widened, a column that is not asked for is not read.  So these changes are metadata alone:

- add a nullable column (at any place); drop a column;
- widen: ``tinyint → smallint → int → bigint``, ``float → double``, a decimal to more digits before the point (at the
  same scale).

Every other change is refused, and the message names the column: values would change or be lost.  A column name that was
dropped before is refused too: old parts still hold the old column's values, and reads would return them as the new
column's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from strandline.algebra.schema import Column, Schema
from strandline.algebra.types import decimal_digits
from strandline.errors import InvalidUsage
from strandline.persist.shard.state import ShardState

SCHEMAS_REMEMBERED: Final = 1_000
"""Of how many texts it is remembered what they write; those that were asked for last."""
_COLUMN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`]+))\s+(\S.*?)\s*", re.DOTALL)
_WIDER: Final[dict[str, frozenset[str]]] = {
    "tinyint": frozenset({"smallint", "int", "bigint"}),
    "smallint": frozenset({"int", "bigint"}),
    "int": frozenset({"bigint"}),
    "float": frozenset({"double"}),
}


@lru_cache(maxsize=SCHEMAS_REMEMBERED)
def parse_schema(ddl: str) -> Schema | None:
    """Return the schema that ``ddl`` describes, in the form of `Schema.ddl`; None if it describes none.

    >>> parse_schema("`a` int, `b,c` decimal(10,2), d struct<x:int,y:array<int>>").names
    ('a', 'b,c', 'd')
    >>> parse_schema("records") is None
    True
    """
    columns = [_COLUMN.fullmatch(text) for text in _split(ddl)]
    if not columns or not all(columns):
        return None
    found = [match.groups() for match in columns if match is not None]
    return Schema(tuple(Column((quoted or "").replace("``", "`") or bare, kind) for quoted, bare, kind in found))


def evolve(state: ShardState, schema: str) -> tuple[ShardState, None]:
    """Make ``schema`` the shard's newest schema; repeating the call changes nothing.

    The certificate is dropped, because it speaks about rows under the old schema.

    Raises `InvalidUsage` if stored parts could not be read under it; the message names the column.
    """
    if state.schema == schema or state.tombstone:
        return state, None
    was, now = parse_schema(state.schema), parse_schema(schema)
    if was is None or now is None:
        raise InvalidUsage(f"shard {state.shard!r} holds {state.schema!r}, which cannot become {schema!r}")
    _refuse_unreadable(state, was, now)
    return replace(state, schema=schema, schemas=(*state.schemas, state.schema), certificate=None), None


def widened(state: ShardState, schema: str) -> ShardState:
    """Return the state with ``schema``, if that is the shard's own and columns behind it; else as it is."""
    was, now = parse_schema(state.schema), parse_schema(schema)
    if was is None or now is None or now.columns[: len(was.columns)] != was.columns:
        return state
    return evolve(state, schema)[0]


def _refuse_unreadable(state: ShardState, was: Schema, now: Schema) -> None:
    old = {column.name.lower(): column.type for column in was}
    once = {column.name.lower() for each in state.schemas for column in parse_schema(each) or ()}
    for column in now:
        name = column.name.lower()
        if name not in old:
            if name in once:
                raise InvalidUsage(
                    f"shard {state.shard!r}: column {column.name!r} was dropped before; its old values would come back "
                    "under this name, choose another"
                )
        elif not _can_become(old[name], column.type):
            raise InvalidUsage(
                f"shard {state.shard!r}: column {column.name!r} is {old[name]} and cannot become {column.type}; a "
                "column can be widened (int to bigint, float to double, a decimal to more digits), added or dropped"
            )
    if not now.columns:
        raise InvalidUsage(f"shard {state.shard!r}: a schema without columns says nothing")


def _can_become(old: str, new: str) -> bool:
    old, new = old.lower(), new.lower()
    if old == new or new in _WIDER.get(old, ()):
        return True
    before, after = decimal_digits(old), decimal_digits(new)
    if before is None or after is None:
        return False
    return before[0] <= after[0] and before[1] == after[1]


def _split(ddl: str) -> Iterable[str]:
    """Yield the columns' texts: commas within quotes, types' brackets and parentheses do not count."""
    depth = start = 0
    quoted = False
    for at, letter in enumerate(ddl):
        if letter == "`":
            quoted = not quoted
        elif not quoted and letter in "<(":
            depth += 1
        elif not quoted and letter in ">)":
            depth -= 1
        elif not quoted and not depth and letter == ",":
            yield ddl[start:at]
            start = at + 1
    if ddl.strip():
        yield ddl[start:]
