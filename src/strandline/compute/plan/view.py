"""From the text of a view to its plan.

1. read the text (`dialect`), find the collections it reads, refuse what has no definite value (`definite`);
2. Spark says what its columns are: it is the authority, so a query that it refuses goes no further, and one that it
   accepts is planned; unless what sqlglot read, written again, is another query to Spark: then it is not trusted, and
   the author's own text is recomputed;
3. plan it (`query`); what is not understood is recomputed, the smallest part that can be;
4. Spark analyses what the plan means: its columns must be those of step 2, else the whole query is recomputed as it
   was written.

A view reads each collection that its text names, also one that its answer does not depend on: it is complete as far as
all of them are, and has the errors of all.  So what a view depends on does not change with the planner or the rule.

So a view is never refused for being hard, and never wrong for our not having understood it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from sqlglot import exp

from strandline.algebra.nodes import Filter, Get, Node, Opaque, UnionAll, frames
from strandline.algebra.scalar import Scalar, as_written, cast, text
from strandline.algebra.schema import Schema
from strandline.compute.plan.asked import STEP_NODES_MAX, is_large, shared_parts, step_nodes
from strandline.compute.plan.matching import key
from strandline.compute.plan.meaning import meaning
from strandline.compute.plan.query import Queries
from strandline.compute.plan.scalars.context import Analyst, Context, Names, Unplanned, project, renamed
from strandline.compute.plan.scalars.definite import (
    inexact,
    refuse_doubts,
    refuse_indefinite,
    refuse_order,
    refuse_unordered,
)
from strandline.compute.plan.sql import MISTAKES, mentioned, parse, position_of, relations, words
from strandline.errors import DefinitionError, RepeatedColumn

_CANDIDATES_MAX = 3


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view that can be maintained.

    ``plan`` has the columns of ``schema``, by name; ``imports`` are the collections that it reads, which are those that
    the text names; ``sql`` the author's text; ``types`` Spark's types of the columns inside the plan that a stage may
    have to store; ``notes`` what the author may want to know; ``key`` columns that identify its rows, if known.
    ``parts`` are nodes of ``plan`` that are stored by themselves (`growth`).
    """

    plan: Node
    schema: Schema
    imports: tuple[str, ...]
    sql: str
    types: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    key: tuple[str, ...] | None = None
    parts: tuple[Node, ...] = ()


def plan_view(sql: str, catalog: Mapping[str, Schema], analyst: Analyst, *, distrusted: bool = False) -> PlannedView:
    """Return the plan of the query ``sql`` over the collections of ``catalog``.

    ``distrusted``: a check found that a plan of it gave wrong rows, so plain Spark recomputes the whole of it.

    Raises:
        DefinitionError: the text is no query that Spark accepts, names what is not there, or has no definite value.
    """
    question = "plan", sql, [(name, schema.ddl) for name, schema in catalog.items()], distrusted
    return analyst.made(question, partial(_plan_view, sql, catalog, analyst, distrusted=distrusted))


def _plan_view(sql: str, catalog: Mapping[str, Schema], analyst: Analyst, *, distrusted: bool) -> PlannedView:
    sql = sql.strip().rstrip(";").rstrip()
    query = parse(sql)
    named = {name: catalog[name] for name in _named(query, sql, catalog)}
    refuse_indefinite(query, sql, analyst.functions)
    schema = _schema(query, sql, named, analyst)
    mistrust = None if query is not None else "only Spark can read this text"
    if query is not None and not analyst.same(sql, as_written(query), named):
        query, mistrust = None, "sqlglot reads this text otherwise than Spark does"
        refuse_indefinite(None, sql, analyst.functions)
    doubts = analyst.doubts(sql, named, ordering=query is None)
    refuse_doubts(doubts)
    if query is None:
        refuse_order(doubts)
    context = Context(named, analyst, None if query is None else mentioned(query), Names(_bound(query)))
    whole = _recomputable(query, sql, named, analyst) if distrusted else None
    parts: tuple[Node, ...] = ()
    try:
        if whole is not None:
            raise Unplanned("a check found rows of it wrong")
        if query is None:
            raise Unplanned(str(mistrust))
        if _comma_before_outer(query):
            raise Unplanned("an outer join after a comma")
        plan = _planned(query, sql, schema, context)
        parts = shared_parts(plan, context.is_storable)
        if (nodes := step_nodes(plan, parts)) > STEP_NODES_MAX:
            whole = _recomputable(query, sql, named, analyst)
            if whole is not None:
                raise Unplanned(
                    f"a step of it has {nodes} nodes where each is written out wherever it is read, and Spark would "
                    f"take long to plan more than {STEP_NODES_MAX}; write views of some of its parts"
                )
        if parts:
            context.notes.append(f"{len(parts)} of its parts are stored by themselves, since it reads them often")
    except Unplanned as why:
        if whole is None and query is not None:
            refuse_unordered(query, sql)
        plan = _whole(whole or sql, schema, named, str(why))
        context.notes[:] = [f"the whole query is recomputed: {why}", *inexact(query)]
        context.types.update((c.name, c.type) for c in schema)
        parts = ()
    found, plan = key(plan), _reading_all(plan, schema, context)
    types, notes = dict(context.types), tuple(context.notes)
    return PlannedView(plan, schema, tuple(sorted(named)), sql, types, notes, found, parts)


def _schema(query: exp.Expr | None, sql: str, relations: Mapping[str, Schema], analyst: Analyst) -> Schema:
    """Return Spark's schema of the query; say which output needs a name if two have the same."""
    try:
        return analyst.schema_of(sql, relations)
    except RepeatedColumn as found:
        outputs = query.selects if isinstance(query, exp.Query) else []
        stars = [each for each in outputs if each.is_star]
        at = next(iter(stars), None) if stars or not outputs else outputs[found.place].unalias()
        what = f"output {found.place + 1}" if stars or at is None else text(at)
        place = None if at is None else position_of(at, sql)
        raise DefinitionError(
            f"two outputs are called {found.name!r}; write {what} AS a name of its own", place
        ) from found


def _recomputable(query: exp.Expr | None, sql: str, relations: Mapping[str, Schema], analyst: Analyst) -> str | None:
    """Return the text by which plain Spark can recompute the whole query; None if none has one answer only."""
    means = meaning(sql, relations, analyst)
    if means == sql and query is not None:
        try:
            refuse_unordered(query, sql)
        except DefinitionError:
            return None
    return means


def _planned(query: exp.Expr, sql: str, schema: Schema, context: Context) -> Node:
    """Return a plan whose columns, as Spark sees them, are those of ``schema``."""
    try:
        planned = Queries(context, sql).plan(query, {})
    except MISTAKES as mistake:
        raise Unplanned(f"the planner fails on it ({type(mistake).__name__}: {mistake})") from mistake
    if len(planned.outputs) != len(schema.columns):
        raise Unplanned("the plan has another number of columns than the query")
    plan = renamed(planned.node, zip(schema.names, planned.columns, strict=True))
    found = context.accepted(plan) if is_large(plan) else context.whole(plan)
    if found != schema:
        raise Unplanned(f"the plan's columns are ({found.ddl}), the query's ({schema.ddl})")
    return plan


def _whole(sql: str, schema: Schema, relations: Mapping[str, Schema], reason: str) -> Node:
    inputs = tuple(Get.of(name, relations[name].names) for name in relations)
    return Opaque(inputs, tuple(relations), sql, schema.names, reason)


def _reading_all(plan: Node, schema: Schema, context: Context) -> Node:
    """Return ``plan``, with a side without rows for each collection that the text names and ``plan`` does not need."""
    sides: list[Node] = []
    for name in sorted(context.relations.keys() - set(frames(plan))):
        nothing = Filter(context.get(name).node, Scalar(exp.false()))
        sides.append(project(nothing, [(each.name, cast(exp.Null(), each.type)) for each in schema]))
        context.notes.append(f"{name} is named and not needed: the view waits for it and has its errors all the same")
    return UnionAll((plan, *sides)) if sides else plan


def _named(query: exp.Expr | None, sql: str, catalog: Mapping[str, Schema]) -> tuple[str, ...]:
    """Return the collections that the text names, in order; raise `DefinitionError` for one that is not there."""
    own = {name.lower(): name for name in catalog}
    if query is None:
        return tuple(dict.fromkeys(own[w.text.lower()] for w in words(sql) if w.text.lower() in own))
    found: dict[str, None] = {}
    for table in relations(query):
        name = ".".join(part.name for part in table.parts)
        if name.lower() not in own:
            near = difflib.get_close_matches(name.lower(), own, _CANDIDATES_MAX)
            hint = f"; did you mean {' or '.join(own[n] for n in near)}?" if near else ""
            raise DefinitionError(f"there is no collection {name!r}{hint}", position_of(table, sql))
        found[own[name.lower()]] = None
    return tuple(found)


def _bound(query: exp.Expr | None) -> Iterator[str]:
    """Yield the variables of the lambdas in the text: a column of the plan that has such a name would be hidden."""
    for function in () if query is None else query.find_all(exp.Lambda):
        yield from (variable.name for variable in function.expressions)


def _comma_before_outer(query: exp.Expr) -> bool:
    """Tell whether a RIGHT or FULL join follows a comma: Spark and sqlglot differ about what stands on its left."""
    for select in query.find_all(exp.Select):
        comma = False
        for join in select.args.get("joins") or []:
            if comma and (join.side or "").upper() in ("RIGHT", "FULL"):
                return True
            comma = comma or not any(join.args.get(key) for key in ("side", "kind", "method", "on", "using"))
    return False
