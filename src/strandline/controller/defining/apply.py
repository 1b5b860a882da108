"""Apply: make an environment hold what its project defines.

What is missing is created: tables and sources, then views, each after those that it reads, then materializations.
What is there already must be as the project says; a definition that was changed is refused by name, before anything
is created.  So applying twice is applying once, and a crash in between is mended by applying again.  What the project
does not mention is left alone.

Source: design page "environment" (definitions reconcile with what runs; in this version a changed one is dropped by
hand first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from sqlglot import exp

from strandline.compute.plan.scalars.dialect import parse, words
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.project import Defined, Project, in_file
from strandline.controller.language.statements import CreateMaterialization, CreateSource, CreateTable, CreateView
from strandline.controller.location.catalog import Item, Materialization, Source, Table, View
from strandline.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Applied:
    """The names that were created, in order, and those that were there."""

    created: tuple[str, ...]
    kept: tuple[str, ...]


async def apply(core: Core, project: Project) -> Applied:
    """Create what ``project`` defines and ``core`` lacks; what is there keeps its history for as long as it says now.

    Raises `DefinitionError`, naming the file: a definition is wrong, or differs from what is there (then nothing was
    created).
    """
    missing, there = [], []
    for defined in project.definitions:
        present = core.catalog.find(defined.statement.name)
        if present is None:
            missing.append(defined)
            continue
        there.append((present, defined))
        with in_file(defined.file):
            if change := _changed(core, present, defined):
                raise DefinitionError(
                    f"{present.name!r} was created with {change}; drop it first, or put the definition back"
                )
    for present, defined in there:
        with in_file(defined.file):
            await _keep(core, present, defined)
    created = []
    for defined in in_order(missing):
        with in_file(defined.file):
            await _create(core, defined)
        created.append(defined.statement.name)
    return Applied(tuple(created), tuple(present.name for present, _ in there))


def in_order(defined: Sequence[Defined]) -> list[Defined]:
    """Return definitions with each view after the views that it reads; else in the order given.

    Raises `DefinitionError` naming views that read each other in a circle.
    """
    views = {each.statement.name.lower(): each for each in defined if isinstance(each.statement, CreateView)}
    graph = {
        name: [other for other in _mentions(each.statement.query) if other in views]
        for name, each in views.items()
        if isinstance(each.statement, CreateView)
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        circle = [repr(views[name].statement.name) for name in reversed(error.args[1])]
        raise DefinitionError(f"views read each other in a circle: {' reads '.join(circle)}") from error
    before = [each for each in defined if isinstance(each.statement, CreateTable | CreateSource)]
    after = [each for each in defined if isinstance(each.statement, CreateMaterialization)]
    return [*before, *(views[name] for name in order), *after]


def _mentions(sql: str) -> list[str]:
    """Return the relations that a query names, in lower case; where only Spark can read it, every word in it."""
    query = parse(sql)
    if query is None:
        return sorted({word.text.lower() for word in words(sql)})
    return sorted({table.name.lower() for table in query.find_all(exp.Table)})


async def _create(core: Core, defined: Defined) -> None:
    match defined.statement:
        case CreateTable() as statement:
            await definitions.create_table(core, statement)
        case CreateSource() as statement:
            await definitions.create_source(core, statement)
        case CreateView() as statement:
            await definitions.create_view(core, statement)
        case CreateMaterialization() as statement:
            await definitions.create_materialization(core, statement)


async def _keep(core: Core, present: Item, defined: Defined) -> None:
    match present, defined.statement:
        case ((Table() | Source() | View()), (CreateTable() | CreateSource() | CreateView()) as statement):
            await definitions.keep(core, present, statement)


def _changed(core: Core, present: Item, defined: Defined) -> str:
    """Return, as text for a message, what differs from the definition; empty if nothing does."""
    match defined.statement, present:
        case CreateTable(columns=columns), Table():
            return _other_columns(core, present, columns)
        case CreateSource() as wanted, Source():
            if (wanted.connector, wanted.options) != (present.connector, present.options):
                return f"{present.connector} and the options {_listed(present.options)}"
            return _other_columns(core, present, wanted.columns)
        case CreateView(query=query), View():
            return "" if _meaning(query) == _meaning(present.sql) else "another query"
        case CreateMaterialization() as wanted, Materialization():
            if (wanted.endpoint, wanted.options) != (present.endpoint, present.options):
                return f"{present.endpoint} and the options {_listed(present.options)}"
            return _other_bindings(present, wanted)
    return f"another kind: it is a {type(present).__name__.lower()}"


def _other_columns(core: Core, present: Table | Source, columns: str) -> str:
    wanted = core.assembly.analyst.parse_ddl(columns)
    return "" if wanted == present.schema else f"the columns ({present.schema.ddl})"


def _other_bindings(present: Materialization, wanted: CreateMaterialization) -> str:
    """A binding without a key has the key that was inferred."""
    there = {bound.collection: bound for bound in present.bindings}
    same = len(there) == len(wanted.bindings) and all(
        (bound := there.get(bind.collection.lower())) is not None
        and bound.table == bind.table
        and (not bind.key or [c.lower() for c in bind.key] == [c.lower() for c in bound.key])
        for bind in wanted.bindings
    )
    return "" if same else "other collections, tables or keys"


def _meaning(sql: str) -> list[tuple[str, bool]]:
    """A query without what means nothing: spaces and comments.

    >>> _meaning("SELECT 'a' -- b") == _meaning("SELECT  'a'"), _meaning("SELECT 'a'") == _meaning("SELECT a")
    (True, False)
    """
    return [(word.text, word.literal) for word in words(sql)]


def _listed(options: dict[str, str]) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in sorted(options.items())) or "of nothing"
