"""Reads: the rows of collections at one time, for a query or whatever else asks for them.

A query reads several collections at one time: by default the latest that is complete for all of them, so what it sees
agrees with itself.  A time that its text says (``AS OF``) is the time of all of it.
Beside them it may read how the environment is at this moment (`controller/introspection`).
``<source>_errors`` is a relation too: the error half of a source, one row an undecodable record.  It can be read
whether there are errors or not; the rows of a collection cannot while it has any (`error_half`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from msgspec.structs import replace
from sqlglot import exp

from strandline.algebra.nodes import Get, Project
from strandline.algebra.notation import within
from strandline.algebra.scalar import Scalar, call, cast, column
from strandline.algebra.schema import ERROR, Column, Schema
from strandline.compute.plan.scalars.order import cut_in_order
from strandline.compute.plan.sql import (
    parse,
    position,
    position_of,
    question_marks,
    relations,
    row_limits,
    words,
)
from strandline.controller.asking.status import live_counters, status
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.introspection import asides, naming
from strandline.controller.introspection.relations import ERRORS as ERRING
from strandline.controller.introspection.relations import RELATIONS, Known, erring
from strandline.controller.location.catalog import ERRORS_SUFFIX, unknown
from strandline.controller.location.items import Collected, Fed, Item, View
from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier import as_time, join, meet
from strandline.instance import error_half
from strandline.persist.handles.contents import Contents, Half, Rows
from strandline.persist.handles.read import ReadHandle, read_definitely
from strandline.persist.shard.state import ShardState
from strandline.plane import Described, Edit

ERRORS: Final = Schema(
    (
        Column("file", "string"),
        Column("line", "bigint"),
        Column("reason", "string"),
        Column("raw", "string"),
        Column("place", "string"),
        Column("key", "string"),
    )
)
"""What is said of a record that could not be decoded: where it stands in a file, or in what else, and why.

``key``: what it says is the row of, where that is known, as JSON: a later record of this key withdraws the error.
"""


NOTHING_YET: Final = "not complete at any time yet: nothing has been read or computed"
REPLACED_S: Final = 10.0
"""How long a reader waits for the tick that brings views that were replaced to a time of their own."""


@dataclass(frozen=True)
class Answer:
    """What a query is answered with: plain rows, and the time at which they are true (None: it reads no collection).

    ``columns``: theirs, as Arrow has them; several may have one name.
    """

    as_of: int | None
    columns: pa.Schema
    rows: Rows


@dataclass(frozen=True)
class Question:
    """A query, and what it reads: all of that is held, so it can be answered while everything goes on.

    ``given``: the values of the question marks of ``text``.
    """

    text: str
    given: Sequence[pa.Scalar]
    as_of: int | None
    relations: Mapping[str, tuple[Schema, Rows]]


class NotYetError(AsOfError):
    """What is read is not complete yet at the time that the caller wants at least; it will be after a tick."""


async def query(core: Core, sql: str, as_of: int | None, hold: Hold, given: Sequence[pa.Scalar] = ()) -> Answer:
    """Return plain Spark's answer to ``sql`` over the collections it names, all at one time, as plain rows.

    What it reads is kept by ``hold``.  ``given``: the values of its question marks.

    Raises:
        AsOfError: not every collection can be read at ``as_of``.
        CollectionError: one of them has errors then.
        DefinitionError: Spark refuses the text, or a relation is unknown.
    """
    return await answered(core, await asked(core, sql, as_of, hold, given=given))


async def answered(core: Core, question: Question) -> Answer:
    """Return the answer to a question.  Raises `DefinitionError` if Spark refuses its text."""
    columns, rows = await core.engine.answer(question.text, question.relations, question.given)
    return Answer(question.as_of, columns, rows)


async def described(core: Core, sql: str, hold: Hold) -> Described:
    """Return what a query with parameters is answered with, and what these are; nothing is computed.

    What it reads is kept by ``hold``.  Raises as `query`.
    """
    marks = question_marks(sql)
    question = await asked(core, sql, None, hold, given=[pa.scalar(None)] * len(marks))
    left = question_marks(question.text)  # a time to read at is one no longer
    found = await core.engine.described(question.text, question.relations, len(left), row_limits(question.text))
    numbers = [marks.index(mark) for mark in left]
    types = dict(zip(numbers, found.parameters, strict=True))
    outputs = {numbers[number]: place for number, place in found.outputs.items()}
    return Described(found.columns, tuple(types.get(number, pa.int64()) for number in range(len(marks))), outputs)


async def asked(
    core: Core, sql: str, as_of: int | None, hold: Hold, least: int = 0, given: Sequence[pa.Scalar] = ()
) -> Question:
    """Return what a query reads, at ``as_of``, or at the latest complete time, which is ``least`` or later.

    Raises as `query`, and `NotYetError` if that is to come.
    """
    aside = asides.taken(sql, given)
    if as_of is not None and aside.as_of not in {None, as_of}:
        raise InvalidUsage(f"the query says AS OF {aside.as_of}, and is asked for at {as_of}: leave one of them out")
    as_of = aside.as_of if as_of is None else as_of
    text, stand_ins = naming.substituted(aside.text)
    for shown in stand_ins.values() if as_of is not None else ():
        raise AsOfError(
            f"'{naming.SCHEMA}.{shown}' has no history, so it cannot be read at {as_of}: leave the time out"
        )
    names = relations_of(core, text, {*stand_ins, *aside.halves})
    halves = {stand_in: await _half(core, half, sql) for stand_in, half in aside.halves.items()}
    present = await _present(core, stand_ins)
    time, relations = await relations_at(core, names, as_of, hold, least, halves)
    relations = relations | present
    schemas = {name: schema for name, (schema, _) in relations.items()}
    text = await core.assembly.planning(partial(cut_in_order, text, schemas, core.assembly.analyst))
    return Question(text, aside.given, time if names or halves else None, relations)


async def _half(core: Core, half: asides.Half, sql: str) -> ReadHandle:
    """Return a handle of the collection that ``errors(…)`` names.  Raises `DefinitionError` with its position."""
    with within(position(sql, half.start)):
        core.catalog.collection(half.collection)
    return await core.readers.holding(half.collection)


async def _present(core: Core, stand_ins: Mapping[str, str]) -> dict[str, tuple[Schema, Rows]]:
    """Return the rows of introspection relations at this moment, each under its stand-in."""
    if not stand_ins:
        return {}
    known = Known(await status(core), core.catalog, await live_counters(core), core.queries.told())
    found = {}
    for stand_in, name in stand_ins.items():
        relation = RELATIONS[name]
        rows = await core.engine.local(relation.table(known), relation.schema, time=0, diff=1)
        found[stand_in] = relation.schema, await core.engine.multiset(rows)
    return found


def edit_reads(core: Core, table: str, edit: Edit) -> list[str]:
    """Return the relations that an edit of ``table`` may name, that table too.  Raises `DefinitionError`."""
    read = {table.lower()}
    for excerpt in (*([edit.where] if edit.where else ()), *edit.values.values()):
        with within(excerpt.start):
            read |= set(relations_of(core, excerpt.text))
    return sorted(read)


async def relations_at(
    core: Core,
    names: Sequence[str],
    as_of: int | None,
    hold: Hold,
    least: int = 0,
    halves: Mapping[str, ReadHandle] | None = None,
) -> tuple[int, dict[str, tuple[Schema, Rows]]]:
    """Return the multisets of relations at one time (None: the latest complete for all), and that time.

    ``halves``: the collections whose errors are relations too.  What is read is kept by ``hold``.
    Raises `AsOfError` if one cannot be read at ``as_of``; else as `latest`.
    """
    handles = {name: await core.readers.holding(_base(core, name)) for name in names}
    halves = halves or {}
    time = as_of if as_of is not None else await latest(core, [*handles.values(), *halves.values()], least)
    found = {name: await multiset(core, name, handles[name], time, hold) for name in names}
    for stand_in, handle in halves.items():
        rows = await core.engine.local(await erring(core.engine, handle, time), ERRING, time=0, diff=1)
        found[stand_in] = ERRING, await core.engine.multiset(rows)
    return time, found


async def latest(core: Core, handles: Iterable[ReadHandle], least: int = 0) -> int:
    """Return the latest time at which all of ``handles`` are complete (0 if there are none).

    Where each of them is a view with a schedule: the last refresh among theirs, for they are known beyond.

    Raises `AsOfError` if one of them is not complete at any time yet, `NotYetError` if one is not at ``least``, or is a
    view without a problem.
    """
    handles = list(handles)
    for each in handles:  # a view that was defined a moment ago comes with the next tick, unless it has a problem
        name = each.name.lower()
        new = each.state.upper.at == 0 and isinstance(core.catalog.find(name), View)
        if new and name not in core.health.problems() and (await each.refresh()).upper.at == 0:
            raise NotYetError(f"{each.name!r} is {NOTHING_YET}")
    time = await complete(handles)
    begins = max((each.begins for each in handles), default=0)
    if time < begins:  # a view was replaced a moment ago, and comes to a time of its own with the next tick
        for each in handles:
            await each.wait_beyond(begins, timeout_s=REPLACED_S)
        time = await complete(handles)
    late = [each.name for each in handles if not each.state.upper.empty and as_time(each.state.upper) <= least]
    if least and late:
        raise NotYetError(f"{late[0]!r} is not complete at {least} yet, the time of the last commit")
    shown = (shown_at(core.catalog.find(each.name), each.state, time) for each in handles)
    return max([*shown, as_time(join(each.since for each in handles))])


async def complete(handles: Iterable[ReadHandle]) -> int:
    """Return the last time at which all of ``handles`` are complete, be it to come.  Raises as `latest`."""
    states = {handle.name: await handle.refresh() for handle in handles}
    for name, state in states.items():
        if state.upper.at == 0:
            raise AsOfError(f"{name!r} is {NOTHING_YET}")
        if state.upper <= state.since:
            raise AsOfError(f"{name!r} cannot be read before its first refresh, at {state.since}")
    upper, since = meet(s.upper for s in states.values()), join(s.since for s in states.values())
    return as_time(upper) - 1 if not upper.empty else as_time(since) if states else 0


def shown_at(item: Item | None, state: ShardState, time: int) -> int:
    """Return the time of its inputs that a collection shows at ``time``: with a schedule, that of the last refresh."""
    if not isinstance(item, View) or item.refresh is None:
        return time
    last = item.refresh.before(time + 1)
    return as_time(state.since) if last is None else last


def relations_of(core: Core, sql: str, others: Collection[str] = ()) -> list[str]:
    """Return the collections that ``sql`` may name, in lower case; where it cannot be read here, those that occur.

    ``others``: what it may name besides.  Raises `DefinitionError` if it names what is not there, or has no history.
    """
    naming.refuse(sql, "a change of a table cannot read")
    known = {name: item for name, item in core.catalog.items.items() if isinstance(item, Collected)}
    names = set(known) | {name + ERRORS_SUFFIX for name, item in known.items() if isinstance(item, Fed)}
    tree = parse(sql)
    if tree is None:
        occurring = {word.text.lower() for word in words(sql)}
        return sorted(names & occurring if occurring else names)
    used = {".".join(part.name.lower() for part in table.parts): table for table in relations(tree)}
    for name in sorted(used.keys() - names - {*others}):
        with within(position_of(used[name], sql)):
            raise unknown("collection", name, names)
    return sorted(used.keys() & names)


def collections_of(core: Core, relations: Iterable[str]) -> list[str]:
    """Return the collections that ``relations`` belong to: of an error half, its source."""
    return sorted({_base(core, name) for name in relations})


def _base(core: Core, name: str) -> str:
    if core.catalog.find(name) is None and name.endswith(ERRORS_SUFFIX):
        return name.removesuffix(ERRORS_SUFFIX)
    return name


async def snapshot(core: Core, handle: ReadHandle, time: int, hold: Hold, half: Half = Half.OK) -> Rows:
    """Return the updates that a collection's contents at ``time`` sum up to; what they lie in is kept by ``hold``.

    Raises:
        AsOfError: it cannot be read at ``time``.
        CollectionError: it has errors then.
    """
    if half is Half.OK and not _forgiven(core, handle):
        await error_half.refuse(core.engine, handle, time)
    return await updates(core, handle, time, hold, half)


async def refuse_changes(core: Core, handle: ReadHandle, lower: int, upper: int) -> None:
    """Raise `CollectionError` if the collection has errors at a time in ``[lower, upper)``."""
    if not _forgiven(core, handle):
        await error_half.refuse_in(core.engine, handle, lower, upper)


def _forgiven(core: Core, handle: ReadHandle) -> bool:
    return core.catalog.forgives(core.catalog.find(handle.name))


async def updates(
    core: Core, handle: ReadHandle, time: int, hold: Hold, half: Half = Half.OK, *, net: bool = False
) -> Rows:
    """Return the updates; ``net``: added up, so that no plan over them evaluates what was withdrawn."""

    async def plan() -> Contents:
        return replace(await handle.snapshot(time, timeout_s=0, half=half), net=net)

    contents, rows = await read_definitely(core.engine, handle, plan)
    hold.take(handle, contents)
    return rows


async def multiset(core: Core, name: str, handle: ReadHandle, time: int, hold: Hold) -> tuple[Schema, Rows]:
    """Return the rows of the relation ``name`` at ``time``, with their schema.  Raises as `snapshot`."""
    if _base(core, name) == name:
        rows = await snapshot(core, handle, time, hold)
        return handle.schema, await core.engine.multiset(rows)
    rows = await snapshot(core, handle, time, hold, Half.ERR)
    paths = ((c, exp.Literal.string(f"$.{c.name}")) for c in ERRORS)
    fields = tuple((c.name, Scalar(cast(call("get_json_object", column("error"), at), c.type))) for c, at in paths)
    parsed = await core.engine.evaluate(Project(Get("errors", (("error", ERROR),)), fields), {"errors": rows})
    return ERRORS, await core.engine.multiset(parsed)
