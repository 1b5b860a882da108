"""The unary calls of a driver whose tables are brought to the runtime's log: what a table must be like, and its DDL.

`apply` first applies what the state names, so that no staged file has to fit columns that were changed since it was
written; the runtime keeps the patch that says so, and calls again.  Then each binding's table is made, adopted, given
further columns, or taken over from an earlier binding.  Taking over changes the table's owner and nothing else: its
rows stay until the first transaction replaces them, in one commit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import pyarrow as pa

from strandline.errors import CorruptionError, DefinitionError, Unavailable
from strandline.materialize.driver import (
    FILLED_BY,
    FOREIGN_ROWS,
    TABLE_GONE,
    UNFIT,
    UNFIT_FOREIGN,
    Applied,
    Constraint,
    ConstraintKind,
    Contents,
    DriverSpec,
    Session,
    Validated,
)
from strandline.materialize.drivers.staged.applying import (
    CONFLICTS_MAX,
    Applier,
    Entry,
    KeyIndex,
    Work,
    entries,
    owner_of,
    rolled_back,
    state_key_of,
    task_of,
    writer_of,
)
from strandline.materialize.drivers.staged.session import StagedSession
from strandline.materialize.drivers.staged.table import (
    Lake,
    Snapshot,
    Table,
    aligned,
    arrow_schema,
    missing,
    shape_of,
    written,
)
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.task import WHOLE, Binding, MaterializationSpec, StateUpdate, given_up, resource_of
from strandline.problem import cases_of
from strandline.store.clock import Ids


class StagedDriver:
    """The driver of the tables of a lake; ``session``: the kind of session that it opens."""

    def __init__(self, spec: DriverSpec, lake: Lake, ids: Ids, session: type[StagedSession] = StagedSession) -> None:
        self._spec = spec
        self._lake = lake
        self._ids = ids
        self._session = session

    async def spec(self) -> DriverSpec:
        """Return which configuration this driver takes."""
        return self._spec

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Return the verdict on each binding's columns; touches no table."""
        return tuple(self._verdicts(binding) for binding in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Apply what is staged, then make the tables fit."""
        return await to_its_end(lambda: self._applied(spec, state))

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return what `apply` would do to the tables."""
        return await to_its_end(lambda: tuple(filter(None, (self._fit(spec, b, {}, do=False) for b in spec.bindings))))

    async def open(self) -> Session:
        """Start a conversation; no table is touched before `Acknowledge`."""
        return self._session(self._lake, self._ids)

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Return the rows of the binding's table, of one snapshot of it."""
        table = self._lake.table(binding.resource)
        seen = await to_its_end(lambda: table.snapshot(""))
        if seen is None:
            raise DefinitionError(f"{table.name} is not there")
        return Contents(None, _tables(table, seen, binding))

    def _verdicts(self, binding: Binding) -> Validated:
        self._lake.table(binding.resource)
        found: dict[str, Constraint] = {}
        for column in binding.columns:
            verdict = self._lake.verdict(column.name, column.type)
            if column.name in binding.key and verdict.kind is ConstraintKind.FIELD_OPTIONAL:
                verdict = Constraint(ConstraintKind.LOCATION_REQUIRED, f"part of the key, {verdict.reason}")
            found[column.name] = verdict
        return Validated(found, self._lake.holds)

    def _applied(self, spec: MaterializationSpec, state: Any) -> Applied:
        patch, actions = self._drained(spec, state)
        if patch:
            return Applied("; ".join(actions), StateUpdate(patch, merge_patch=True))
        known = dict(entries(state))
        return Applied("; ".join(filter(None, (self._fit(spec, each, known, do=True) for each in spec.bindings))))

    def _drained(self, spec: MaterializationSpec, state: Any) -> tuple[dict[str, Any], list[str]]:
        """Apply what the state names, but of a table that is about to be filled from the start."""
        patch: dict[str, Any] = {}
        actions: list[str] = []
        applier = Applier(self._ids, KeyIndex())
        keys = {binding.resource: binding.state_key for binding in spec.bindings}
        for state_key, entry in entries(state):
            resource = resource_of(state_key)
            if keys.get(resource, state_key) != state_key:
                patch[state_key] = None  # what it names is replaced; whatever is not applied is moot
                continue
            if entry.work is None:
                continue
            table = self._lake.table(resource)
            if resource not in keys and (why := _moot(table, entry.writer, entry.work)):
                patch[state_key] = None
                actions.append(_forgot(resource, why))
                continue
            try:
                if applier.apply(table, entry):
                    actions.append(f"applied what was staged for table {resource!r}")
                patch[state_key] = {"work": None}
            except (DefinitionError, CorruptionError) as error:
                if resource in keys:
                    raise
                patch[state_key] = None  # it must not stop the tables that views still fill
                actions.append(_forgot(resource, _cause(error)))
        return patch, actions

    def _fit(self, spec: MaterializationSpec, binding: Binding, known: dict[str, Entry], *, do: bool) -> str:
        """Make the binding's table, or check that it fits; return what was done as a sentence, or nothing."""
        table, last = self._lake.table(binding.resource), known.get(binding.state_key)
        owner, wanted = owner_of(spec.name, binding.state_key), self._lake.stored(shape_of(binding))
        if binding.gives_up and last is not None:
            return ""  # it is emptied, and may be another's by now
        for _ in range(CONFLICTS_MAX):
            seen = table.snapshot("" if last is None else last.writer)
            if seen is None:
                if last is not None:
                    raise _gone(table, binding)
                if not do or table.create(wanted, owner):
                    return f"created table {binding.resource!r}"
                continue
            if last is not None and seen.reached < last.number:
                raise rolled_back(table, seen, last.number, spec.name)
            action, change = _difference(table, seen, binding, owner, wanted, spec.name)
            if change is None or not do or change():
                return action
        raise Unavailable(f"{table.name}: {CONFLICTS_MAX} commits of other writers came before; try again")


def _moot(table: Table, writer: str, work: Work) -> str:
    """Return why nothing can come of what was staged for a table that no view fills any longer; empty: it can."""
    seen = table.snapshot(writer)
    if seen is None:
        return "the table is gone"
    return "" if seen.owner == work.owner else "the table is filled by another by now"


def _forgot(resource: str, why: str) -> str:
    return f"forgot what was staged for table {resource!r}, whose view was dropped: {why}"


def _cause(error: Exception) -> str:
    """Return what has happened, without the ways out: they are of a table that a view fills."""
    (said,) = error.args
    return "; ".join(case.cause for case in cases_of(said)) or str(said)


def _difference(table: Table, seen: Snapshot, binding: Binding, owner: str, wanted: Any, task: str) -> tuple[str, Any]:
    """Return what has to be done to a table that is there, as a sentence and as a call; no call: nothing.

    Raises:
        DefinitionError: it is another program's, or another materialization's, which may have this one's name and be of
            another location; or it has other columns.
        FencedError: a later backfill fills it.
    """
    resource, by, filled = binding.resource, task_of(seen.owner), seen.owner == owner
    elsewhere = by is not None and binding.elsewhere(state_key_of(seen.owner))
    ours = by == task and not elsewhere
    lacks = missing(seen.shape, wanted)
    if ours:
        binding.require_newest([state_key_of(seen.owner)])
    empty = not any(piece.rows for piece in seen.pieces)
    if by is not None and _given_up(table, seen, by, empty=empty) and not (ours and empty):
        ours, by = False, None
    if binding.gives_up and not ours:
        return "", None
    if not ours and by is not None:
        where = " of another location" if elsewhere else ""
        raise DefinitionError(FILLED_BY.said(table=table.name, by=by, where=where))
    if not (ours or empty):
        raise DefinitionError(FOREIGN_ROWS.said(table=table.name))
    if lacks is None:
        if filled or not ours:
            about = {"table": table.name, "collection": binding.collection, "item": binding.task}
            columns = {"there": written(seen.shape), "wanted": written(wanted)}
            raise DefinitionError((UNFIT if filled else UNFIT_FOREIGN).said(**about, **columns))
        return (
            f"recreated table {resource!r} for its new columns, to be filled from the start",
            partial(table.recreate, seen, wanted, owner),
        )
    parts = [f"added column {name!r} to table {resource!r}" for name, _ in lacks]
    if not ours:
        parts.append(f"adopted table {resource!r}, which is empty")
    elif not filled:
        parts.append(f"table {resource!r} is filled from the start: its rows stay until the new ones replace them")
    return "; ".join(parts), partial(table.own, seen, owner, lacks) if parts else None


def _given_up(table: Table, seen: Snapshot, by: str, *, empty: bool) -> bool:
    """Return whether the binding of task ``by`` that owns a table has emptied it, and fills it no longer."""
    state_key = state_key_of(seen.owner)
    if not given_up(state_key):
        return False
    if empty:
        return True
    emptied = table.snapshot(writer_of(by, state_key, WHOLE))  # what is there now has come since, if it was
    return emptied is not None and emptied.reached > 0


def _gone(table: Table, binding: Binding) -> DefinitionError:
    about = {"collection": binding.collection, "item": binding.task}
    return DefinitionError(TABLE_GONE.said(table=table.name, **about))


async def _tables(table: Table, seen: Snapshot, binding: Binding) -> AsyncGenerator[pa.Table, None]:
    schema = arrow_schema(shape_of(binding))
    names = [column.name for column in binding.columns]
    for piece in seen.pieces:
        rows = table.read(piece, seen.shape, names)
        while (some := await to_its_end(partial(next, rows, None))) is not None:
            yield aligned(some, schema)
