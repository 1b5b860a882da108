"""What Apply does to the table of a binding: it is planned by looking, so a preview changes nothing.

A table that this task never filled is adopted if it is empty and can store the rows; else it is refused, with the
difference.  A table that a materialization of the same name fills from another location is refused: once that table was
dropped, or given up, the other location's checkpoints are forgotten.
In a table of ours a column is added, a type is widened and a NOT NULL is dropped in place.  Any other
difference is said, and made up for by a backfill, which makes the table again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from strandline.errors import DefinitionError
from strandline.materialize.driver import FILLED_BY, NO_TABLE, TABLE_GONE, UNFIT, UNFIT_FOREIGN
from strandline.materialize.drivers.sql import checkpoints, tables
from strandline.materialize.drivers.sql.connection import Connection, Sql, compose, identifier, joined
from strandline.materialize.drivers.sql.dialect import Dialect, Found
from strandline.materialize.drivers.sql.tables import INDEX_PREFIX, Target
from strandline.materialize.protocol.task import Checkpoint, MaterializationSpec, given_up, resource_of
from strandline.problem import Problem

SCRATCH: Final = "strandline_scratch"
_TYPE: Final = re.compile(r"([a-z]+(?: [a-z]+)*)(?:\((\d+)(?:,\s*(\d+))?\))?")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_DOUBLES: Final = ("float", "double")
_SYNONYMS: Final = {"integer": "int", "real": "float", "double precision": "double", "numeric": "decimal"}


@dataclass(frozen=True, slots=True)
class Change:
    """One change: the sentence that says it (empty: no reader needs to know), and its statements."""

    said: str
    statements: tuple[Sql, ...] = ()


@dataclass(frozen=True, slots=True)
class Beforehand:
    """What the database holds before an Apply changes anything: no two of its bindings have one table.

    ``tables``: the name of each table, by `Dialect.fold` of it.  ``committed``: the checkpoints of the task.
    ``forgotten``: the state keys in them of another location, whose tables are gone or given up.
    """

    tables: Mapping[str, str]
    committed: Sequence[Checkpoint]
    forgotten: Sequence[str] = ()

    @property
    def state_keys(self) -> list[str]:
        """The bindings that the checkpoints mention."""
        return [state_key for checkpoint in self.committed for state_key, _ in checkpoint.times]


def beforehand(connection: Connection, dialect: Dialect, spec: MaterializationSpec) -> Beforehand:
    """Look once, for all bindings: a catalog may have many thousands of tables.

    Raises:
        DefinitionError: a materialization of the same name, but of another location, fills tables here; or what is
            called as the table of the checkpoints is none that can be used.
    """
    there = {dialect.fold(name): name for name in dialect.tables(connection)}
    _refuse_other(connection, dialect, checkpoints.TABLE)
    held = Beforehand(there, [*checkpoints.of_task(connection, dialect, spec.name).values()])
    elsewhere = sorted(key for key in set(held.state_keys) if spec.bindings[0].elsewhere(key))
    for name in (resource_of(key) for key in elsewhere if not given_up(key)):
        if dialect.fold(name) in there:
            raise DefinitionError(FILLED_BY.said(table=f"table {name!r}", by=spec.name, where=" of another location"))
    return Beforehand(there, [each.lacking(elsewhere) for each in held.committed], elsewhere)


def require_newest(connection: Connection, dialect: Dialect, spec: MaterializationSpec) -> None:
    """Raise `FencedError` if a later backfill has filled a table of ``spec`` by now.

    A system that commits each change of a table at once (MariaDB) has dropped it already: there `plan` alone guards.
    """
    now = Beforehand({}, [*checkpoints.of_task(connection, dialect, spec.name).values()])
    for binding in spec.bindings:
        binding.require_newest(now.state_keys)


def plan(connection: Connection, target: Target, before: Beforehand) -> list[Change]:
    """Return what makes the binding's table fit; change nothing.

    A table that one of the task's checkpoints mentions belongs to this task.  One that is to be emptied, and is not its
    own (any longer), has nothing that it could take out.

    Raises:
        DefinitionError: the table was filled and is gone; or it has other columns; or it holds rows of another program;
            or it is none that keeps the promises of this driver, as a view or an unlogged table.
        FencedError: a later backfill has filled it.
    """
    binding, dialect = target.binding, target.dialect
    binding.require_newest(before.state_keys)
    name = binding.resource
    filled = any(checkpoint.of(binding.state_key) is not None for checkpoint in before.committed)
    ours = any(checkpoint.mentions(binding) for checkpoint in before.committed)
    if binding.gives_up and not ours:
        return []
    _refuse_other(connection, dialect, name)
    found = before.tables.get(dialect.fold(name))
    if found is None:
        if filled:
            about = {"collection": binding.collection, "item": binding.task}
            raise DefinitionError(TABLE_GONE.said(table=f"table {name!r}", **about))
        return [Change(f"created table {name!r}", _created(target))]
    there, wanted = dialect.columns(connection, found), _wanted(connection, target)
    if not ours:
        changes = None if _missing(there, wanted) else _in_place(target, there, wanted)
        if changes is None:
            raise _unfit(target, there, wanted, UNFIT_FOREIGN)
        tables.refuse_rows(connection, target)
        return changes + _indexed(connection, target, found)
    left_over = not filled and not {each.name for each in there} <= {each.name for each in wanted}
    changes = None if left_over else _in_place(target, there, wanted)
    if changes is None:
        if filled:
            raise _unfit(target, there, wanted, UNFIT)
        dropped = compose("DROP TABLE {t}", t=target.table)
        return [
            Change(
                f"recreated table {name!r} for its new columns, to be filled from the start",
                (dropped, *_created(target)),
            )
        ]
    changes += _indexed(connection, target, found)
    if not filled:
        said = f"table {name!r} is filled from the start: its rows stay until the new ones replace them"
        changes.append(Change(said))
    return changes


def _created(target: Target) -> tuple[Sql, ...]:
    table = compose("CREATE TABLE {t} ({c})", t=target.table, c=_declared(target))
    return (table,) if target.index is None else (table, target.index[1])


def _declared(target: Target) -> Sql:
    quote = target.dialect.identifier
    return joined(", ", (compose("{n} {t}", n=quote(name), t=kind) for name, kind in target.declared))


def _wanted(connection: Connection, target: Target) -> list[Found]:
    """Return the columns in the system's own spelling, because systems have many spellings of one type."""
    scratch = identifier(SCRATCH)
    connection.change(compose("CREATE TEMPORARY TABLE {s} ({c})", s=scratch, c=_declared(target)))
    try:
        return target.dialect.columns(connection, SCRATCH, temporary=True)
    finally:
        connection.change(compose("DROP TABLE {s}", s=scratch))


def _missing(there: Sequence[Found], wanted: Sequence[Found]) -> list[Found]:
    """Return the wanted columns that are not there, or not as wanted."""
    types = {each.name: each.type for each in there}
    return [each for each in wanted if types.get(each.name) != each.type]


def _in_place(target: Target, there: Sequence[Found], wanted: Sequence[Found]) -> list[Change] | None:
    """Return the changes that make the columns fit; None if no such changes do."""
    dialect, table = target.dialect, target.binding.resource
    declared, types = dict(target.declared), {each.name: each.type for each in there}
    changes = []
    for each in _missing(there, wanted):
        holes = {"t": target.table, "n": dialect.identifier(each.name), "c": declared[each.name]}
        if each.name not in types:
            said = f"added column {each.name!r} to table {table!r}"
            changes.append(Change(said, (compose("ALTER TABLE {t} ADD COLUMN {n} {c}", **holes),)))
        elif dialect.widen is not None and widens(types[each.name], each.type):
            said = f"widened column {each.name!r} of table {table!r} from {types[each.name]} to {each.type}"
            changes.append(Change(said, (compose(dialect.widen, **holes),)))
        else:
            return None
    for each in there:
        if not each.required or each.name in target.binding.key:
            continue  # who made the table may have known that no key is NULL
        if dialect.relax is None or each.name not in declared:
            return None
        holes = {"t": target.table, "n": dialect.identifier(each.name), "c": declared[each.name]}
        said = f"dropped NOT NULL of column {each.name!r} of table {table!r}"
        changes.append(Change(said, (compose(dialect.relax, **holes),)))
    return changes


def _indexed(connection: Connection, target: Target, found: str) -> list[Change]:
    """Return what leaves the table with the index of its key, and with no index of an earlier key."""
    there = [name for name in target.dialect.indexes(connection, found) if name.startswith(INDEX_PREFIX)]
    wanted = target.index
    unindex = target.dialect.unindex
    changes = [
        Change("", (compose(unindex, i=target.dialect.qualified(name), t=target.table),))
        for name in there
        if wanted is None or name != wanted[0]
    ]
    if wanted is not None and wanted[0] not in there:
        changes.append(Change(f"indexed the key of table {target.binding.resource!r}", (wanted[1],)))
    return changes


def _refuse_other(connection: Connection, dialect: Dialect, name: str) -> None:
    what = dialect.other(connection, name)
    if what is not None:
        raise DefinitionError(NO_TABLE.said(table=name, what=what))


def _unfit(target: Target, there: Sequence[Found], wanted: Sequence[Found], problem: Problem) -> DefinitionError:
    about = {"collection": target.binding.collection, "item": target.binding.task}
    columns = {"there": _text(there), "wanted": _text(wanted)}
    return DefinitionError(problem.said(table=f"table {target.binding.resource!r}", **about, **columns))


def _text(columns: Sequence[Found]) -> str:
    return ", ".join(f"{each.name} {each.type}{' NOT NULL' if each.required else ''}" for each in columns)


def widens(was: str, now: str) -> bool:
    """Return whether every value of a type is one of another type, which can store more.

    >>> widens("INTEGER", "BIGINT"), widens("real", "double precision"), widens("bigint(20)", "int(11)")
    (True, True, False)
    >>> widens("numeric(10,2)", "numeric(12,3)"), widens("numeric(10,2)", "numeric(10,3)"), widens("text", "bigint")
    (True, False, False)
    """
    (old, *old_digits), (new, *new_digits) = _parsed(was), _parsed(now)
    if old == new == "decimal":
        (precision, scale), (precision_now, scale_now) = old_digits, new_digits
        return scale_now >= scale and precision_now - scale_now >= precision - scale
    return any(old in order and new in order and order.index(old) < order.index(new) for order in (_WHOLE, _DOUBLES))


def _parsed(text: str) -> tuple[str, int, int]:
    """Return the name of a type and its two numbers, 0 where there is none."""
    found = _TYPE.fullmatch(text.lower())
    if found is None or text.lower() == "tinyint(1)":  # MariaDB's boolean
        return "", 0, 0
    return _SYNONYMS.get(found[1], found[1]), int(found[2] or 0), int(found[3] or 0)
