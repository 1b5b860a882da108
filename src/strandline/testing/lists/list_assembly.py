"""An environment in memory over the list engine, with an `Analyst` without Spark: for tests, and for the benchmark.

sqlglot resolves the names of a query and works out its types.  It supports the plain part of SQL that simulated views
use, for which it agrees with Spark.  So the real planner runs in a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, Final, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from strandline.algebra.nodes import Node
from strandline.algebra.scalar import Doubt, Faithful
from strandline.algebra.schema import Column, Schema
from strandline.controller.assembly import Assembly
from strandline.controller.location.tenure import SystemProcesses
from strandline.errors import DefinitionError
from strandline.store.clock import Clock, Ids, Inline
from strandline.store.protocols import Blob, Consensus
from strandline.testing.doubles import in_turn
from strandline.testing.lists.list_engine import ListEngine

T = TypeVar("T")

ANSWERS_MAX: Final = 10_000
"""So many answers are remembered: tests plan the same few views again and again."""


class ListAnalyst:
    """`strandline.controller.assembly.TypeAnalyst` by sqlglot."""

    functions: frozenset[str] = frozenset()

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        """See `Analyst.schema_of`."""
        return _schema_of(sql, tuple(sorted(relations.items())))

    def doubts(self, sql: str, relations: Mapping[str, Schema], *, ordering: bool) -> tuple[Doubt, ...]:
        """See `Analyst.doubts`: simulated views have none."""
        return ()

    def same(self, sql: str, other: str, relations: Mapping[str, Schema]) -> bool:
        """See `Analyst.same`: here two texts are the same query if they are the same tree."""
        return sqlglot.parse_one(sql, dialect=Faithful) == sqlglot.parse_one(other, dialect=Faithful)

    def compared(self, left: str, right: str) -> str | None:
        """See `Analyst.compared`: here only values of one type are compared."""
        return left if left == right else None

    def made(self, question: tuple[Any, ...], make: Callable[[], T]) -> T:
        """See `Analyst.made`."""
        return make()

    def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
        """See `Analyst.rehearse`: here no step is text, so there is nothing to refuse."""

    def parse_ddl(self, ddl: str) -> Schema:
        """Return the schema of a column list."""
        columns = (part.split(maxsplit=1) for part in ddl.split(", "))
        return Schema(
            tuple(Column(name.strip("`"), type_.partition(" COMMENT ")[0].lower()) for name, type_ in columns)
        )


@lru_cache(ANSWERS_MAX)
def _schema_of(sql: str, relations: tuple[tuple[str, Schema], ...]) -> Schema:
    known: dict[str, object] = {n.lower(): {c.name: c.type for c in schema} for n, schema in relations}
    try:
        tree = qualify(_unpacked(sqlglot.parse_one(sql, dialect="spark")), schema=known, dialect="spark")
        tree = annotate_types(tree, schema=known, dialect="spark")
    except SqlglotError as error:
        raise DefinitionError(str(error).splitlines()[0]) from error
    if not isinstance(tree, exp.Query):
        raise DefinitionError("the text is not a query")
    return Schema(tuple(Column(each.alias_or_name, _type(each)) for each in tree.selects))


def _unpacked(tree: exp.Expr) -> exp.Expr:
    """Return ``tree`` without the barrier that packs a row into a struct and out of it again (`rendering`)."""
    for select in list(tree.find_all(exp.Select)):
        packed = select.args["from_"].this.this if select.args.get("laterals") else None
        if isinstance(packed, exp.Select) and any(each.alias == "__row" for each in packed.selects):
            select.set("from_", packed.args["from_"].copy())
            select.set("laterals", None)
    return tree


def _type(column: exp.Expr) -> str:
    if column.type is None or column.is_type(exp.DType.UNKNOWN):
        raise DefinitionError(f"the type of {column.alias_or_name!r} is not known here")
    return column.type.sql("spark").lower().replace(", ", ",")


def list_assembly(
    clock: Clock,
    ids: Ids,
    blob: Blob,
    consensus: Consensus,
    *,
    engine: ListEngine | None = None,
    connectors: Any = None,
    drivers: Any = None,
    opened: ExitStack | None = None,
) -> Assembly:
    """Return the assembly of an environment over ``blob`` and ``consensus``, with actors that run in turn.

    ``engine``: None makes one over ``blob``.  ``connectors``, ``drivers``: None where there is no source, no endpoint.
    """
    return Assembly(
        clock=clock,
        ids=ids,
        blob=blob,
        consensus=consensus,
        engine=ListEngine(blob) if engine is None else engine,
        analyst=ListAnalyst(),
        connectors=connectors,
        drivers=drivers,
        together=in_turn,
        beside=Inline,
        lanes=1,
        processes=SystemProcesses(),
        address=None,
        opened=ExitStack() if opened is None else opened,
    )
