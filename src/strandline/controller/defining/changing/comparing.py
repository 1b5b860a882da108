"""Comparing: how a definition differs from the item that is there, and which columns a project's definition adds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from strandline.algebra.schema import Column, Schema
from strandline.controller.defining import definitions, sources
from strandline.controller.defining.changing import rebinding
from strandline.controller.defining.changing.replacing import meaning, same_query
from strandline.controller.defining.ground import Ground
from strandline.controller.defining.project.settings import Defined, absolute
from strandline.controller.defining.relocating import options_of
from strandline.controller.language.clauses import INCLUDE, Kept
from strandline.controller.language.instances import CreateIndex, CreateInstance
from strandline.controller.language.statements import (
    Create,
    CreateConnection,
    CreateMaterialization,
    CreateSource,
    CreateSourceTable,
    CreateTable,
    CreateView,
)
from strandline.controller.location import on_error
from strandline.controller.location.items import (
    Assigned,
    Collected,
    Connection,
    Fed,
    IndexItem,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
    made_with,
)
from strandline.controller.location.version import successor


def more_columns(core: Ground, wanted: Create, present: Item) -> tuple[Column, ...]:
    """Return the columns that a definition has besides those that are there; none if it differs otherwise."""
    match wanted, present:
        case CreateTable() | CreateSource() | CreateSourceTable(), Table() | Source() | SourceTable():
            return gained(core, wanted, present) or ()
        case _:
            return ()


def gained(
    core: Ground, wanted: CreateTable | CreateSource | CreateSourceTable, present: Table | Fed
) -> tuple[Column, ...] | None:
    """Return the columns that a table or a source lacks of its definition; None if it differs otherwise.

    It may have those that it was given since it was created, which the definition need not say, nor in their order.
    A source that gets columns by itself may have any others besides.  Columns of metadata stand where they were when
    the source was created.  Names are compared without case.
    """
    said, options = _said(core, wanted)
    there = {column.name.lower(): column.type for column in present.schema}
    added = tuple(column for column in said if column.name.lower() not in there)
    if any(there.get(column.name.lower(), column.type) != column.type for column in said):
        return None
    if on_error.evolves(options):
        return added
    metadata = {text.lower() for name, text in options.items() if name.startswith(INCLUDE)}
    first = [column.name.lower() for column in made_with(present)]
    named = [column.name.lower() for column in said]
    ours, theirs = ([name for name in each if name not in metadata] for each in (named, first))
    return added if ours[: len(theirs)] == theirs and set(first) <= set(named) else None


def _said(core: Ground, wanted: CreateTable | CreateSource | CreateSourceTable) -> tuple[Schema, Mapping[str, str]]:
    """Return the columns that a definition says, and the options."""
    match wanted:
        case CreateTable():
            return core.assembly.analyst.parse_ddl(wanted.columns), {}
        case CreateSource():
            return sources.schema_of(core, wanted) or Schema(()), wanted.options
        case CreateSourceTable():
            source = core.catalog.one(wanted.source, SharedSource, "source")
            options = {**core.catalog.source_options(source), **wanted.options}
            return core.assembly.analyst.parse_ddl(wanted.columns), options


def is_replaced(core: Ground, present: Item, defined: Defined) -> bool:
    """Return whether a definition says another query, or another schedule, for a view that is there."""
    statement = defined.statement
    if not isinstance(statement, CreateView) or not isinstance(present, View):
        return False
    return not _other_instance(statement.instance, present) and bool(_other_query(core, statement, present))


def alterable(core: Ground, item: Item) -> tuple[str, ...]:
    """Return the options of an item that may change while it is there, by ALTER or by its definition in a project."""
    match item:
        case Materialization():
            return on_error.ALTERABLE
        case Source() | SharedSource():
            return (*on_error.ALTERABLE_OF_SOURCES, *core.assembly.connectors.alterable(item.connector))
        case SourceTable():
            return on_error.ALTERABLE_OF_SOURCES
    return ()


def options_anew(core: Ground, item: Item, defined: Defined) -> dict[str, str | None]:
    """Return the options of an item that may change and that its definition says otherwise; None: it says nothing.

    What the project's defaults gave it when it was created stays.
    """
    wanted = options_of(defined.statement)
    names = frozenset(alterable(core, item)) - defined.by_default
    return {name: wanted.get(name) for name in sorted(names) if wanted.get(name) != options_of(item).get(name)}


def set_anew(core: Ground, present: Item, defined: Defined) -> Iterator[str]:
    """Yield what `_keep` takes over of a definition, but for columns; of a connection no value is said."""
    statement = defined.statement
    match present, statement:
        case Connection(), CreateConnection():
            if (present.system, present.options) != (statement.system, statement.options):
                yield "other options"
        case InstanceItem(), CreateInstance():
            if present.replicas != statement.replicas:
                yield "other replicas"
        case Materialization(), CreateMaterialization():
            drops, adds = rebinding.rebinding(present, statement)
            yield from (f"view {each.bind.collection!r}" for each in adds)
            yield from (f"view {each.collection!r} no longer" for each in drops)
    for name, text in options_anew(core, present, defined).items():
        yield f"no {name}" if text is None else f"{name} {text!r}"
    if isinstance(present, Collected) and isinstance(statement, Kept):
        before, now = present.keep_history, statement.keep_history
        if now != before:
            yield "a history as the settings say" if now is None else f"KEEP HISTORY FOR {now!r}"
    if isinstance(present, Table | Source | SourceTable) and isinstance(statement, Kept):
        after = definitions.keeping(present, statement).comments
        for name in sorted(present.comments.keys() | after.keys()):
            if (text := after.get(name)) != present.comments.get(name):
                yield f"no comment on {name}" if text is None else f"{name} COMMENT {text!r}"


def changed(core: Ground, present: Item, defined: Defined) -> str:
    """Return, as text for a message, what differs from the definition; empty if nothing does, or it may."""
    changing = defined.by_default.union(alterable(core, present))

    def own(options: Mapping[str, str]) -> dict[str, str]:
        """Paths are absolute already; here they are spelled in one way."""
        found = {name: text for name, text in options.items() if name not in changing}
        paths = {name: text for name, text in found.items() if text.startswith(("/", "file:/"))}
        return found | absolute(Path("/"), paths)

    match defined.statement, present:
        case CreateTable() as wanted, Table():
            return _other_columns(core, wanted, present)
        case (CreateConnection(), Connection()) | (CreateInstance(), InstanceItem()):
            return ""
        case CreateIndex() as wanted, IndexItem():
            key = tuple(column.lower() for column in wanted.columns)
            if (wanted.collection.lower(), key) != (present.collection, tuple(each.lower() for each in present.key)):
                return f"the columns ({', '.join(present.key)}) of {present.collection!r}"
            return _other_instance(wanted.instance, present)
        case CreateSource() as wanted, Source() | SharedSource():
            if moved := _other_instance(wanted.instance, present):
                return moved
            if wanted.connector != present.connector:
                return f"another connector: {present.connector} → {wanted.connector}"
            if other := _other_options(own(present.options), own(wanted.options)):
                return other
            schema = sources.schema_of(core, wanted)
            if schema is None or isinstance(present, SharedSource):
                return "" if schema is None and isinstance(present, SharedSource) else "columns, or without them"
            return _other_columns(core, wanted, present)
        case CreateSourceTable() as wanted, SourceTable():
            if (wanted.source.lower(), wanted.reference) != (present.source, present.reference):
                return f"the reference {present.reference!r} of source {present.source!r}"
            if other := _other_options(own(present.options), own(wanted.options)):
                return other
            return _other_columns(core, wanted, present)
        case CreateView() as view, View():
            return _other_instance(view.instance, present) or _other_query(core, view, present)
        case CreateMaterialization() as wanted, Materialization():
            if moved := _other_instance(wanted.instance, present):
                return moved
            if wanted.endpoint != present.endpoint:
                return f"another endpoint: {present.endpoint} → {wanted.endpoint}"
            if other := _other_options(own(present.options), own(wanted.options)):
                return other
            return _other_bindings(present, wanted)
    return f"another kind: it is {definitions.a(present)}"


def created_with(change: str) -> str:
    """Return why an item cannot become what its definition says; ``change``: what `changed` found."""
    return f"it was created with {change}"


def refusal(defined: Defined, why: str) -> str:
    """Return that a definition is refused since what is there would have to be dropped, why, and what to do."""
    name = defined.statement.name
    drop = shlex.join(["strandline", "apply", "--drop", name])
    return f"{defined.file}: {name!r}: {why}; put the definition back, or drop it with all that it holds: {drop}"


def _other_instance(wanted: str, present: Assigned) -> str:
    if wanted.lower() == present.instance:
        return ""
    return f"instance {present.instance!r}" if present.instance else "no instance"


def _other_query(core: Ground, wanted: CreateView, present: View) -> str:
    """Return what differs from the query of a view, or of what is to replace it."""
    following = core.catalog.find(successor(present.name))
    there = following if isinstance(following, View) else present
    if same_query(wanted, there):
        return "fewer columns of " + ", ".join(sorted(there.narrowed)) if wanted.replaces and there.narrowed else ""
    return "another query" if meaning(wanted.query) != meaning(there.sql) else f"REFRESH {there.refresh or 'ON COMMIT'}"


def _other_columns(core: Ground, wanted: CreateTable | CreateSource | CreateSourceTable, present: Table | Fed) -> str:
    if gained(core, wanted, present) is not None:
        return ""
    return f"the columns ({present.schema.ddl}) → ({' '.join(wanted.columns.split())})"


def _other_bindings(present: Materialization, wanted: CreateMaterialization) -> str:
    """Views come and go (`rebinding`).  A binding without a key has the key that was inferred."""
    there = {bound.collection: bound for bound in present.bindings}
    same = len(there) == len(present.bindings) and all(
        (bound := there.get(bind.collection.lower())) is None
        or (
            bound.table == bind.table
            and (not bind.key or [c.lower() for c in bind.key] == [c.lower() for c in bound.key])
        )
        for bind in wanted.bindings
    )
    return "" if same else "other tables or keys"


def _other_options(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return which options differ, and how; empty: none does.

    >>> _other_options({"header": "false", "path": "/d"}, {"path": "/d", "delimiter": "|"})
    "other options: delimiter not given → '|', header 'false' → not given"
    """

    def said(options: Mapping[str, str], name: str) -> str:
        return repr(options[name]) if name in options else "not given"

    differing = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    texts = [f"{name} {said(before, name)} → {said(now, name)}" for name in differing]
    return f"other options: {', '.join(texts)}" if texts else ""
