"""The table of a binding: the pieces of its statements, and how its rows are loaded, stored and emptied.

Every function works inside the caller's transaction.  Rows are staged in columns called ``c0, c1, ...``, in the order
of the binding's columns, and two flags: a name from a user reaches SQL only through `Dialect.identifier`.

A transaction is stored by one `Dialect.merge`, if the dialect has it.  Otherwise it is stored by statements that every
system has: rows that exist are deleted, and rows that stay are inserted.  Either way the flags that say which keys
exist are checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.types import Atom, Type, parse
from strandline.errors import CorruptionError, DefinitionError
from strandline.materialize.driver import FOREIGN_ROWS, ROWS_MISSING, SWALLOWED
from strandline.materialize.drivers.sql.checkpoints import TABLE
from strandline.materialize.drivers.sql.connection import Connection, Sql, Staged, Take, compose, identifier, joined
from strandline.materialize.drivers.sql.dialect import Dialect, Pairs
from strandline.materialize.protocol.holds import require_held
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.protocol.refusals import SPLIT_ALONE
from strandline.materialize.protocol.task import WHOLE, Binding, KeyRange
from strandline.materialize.spool import Spool
from strandline.materialize.stores import second_row
from strandline.problem import Problem, Stopped, Way

DELETED: Final = "__deleted"
"""The column that says that a row was deleted, as Debezium's: no column of a collection can have its name."""
INDEX_PREFIX: Final = "strandline_key_"
_FLAG: Final = Atom("boolean")
PRESENT: Final = identifier("present")
GONE: Final = identifier("gone")

NullPattern: TypeAlias = int
"""Which columns of a key are NULL: bit ``n`` is that of the key's column ``n``."""

ONLY_GROWS: Final = Problem(
    "row-went-from-growing-table",
    "{collection!r} into {resource!r}: a row went, and a table that only grows cannot say so",
    Stopped.ENDPOINT,
    (Way("drop the materialization, and create it with the diffs of changes, or with soft deletes"),),
)


@dataclass(frozen=True)
class Target:
    """One binding of a materialization.  ``soft``: a deleted row is kept, and marked."""

    dialect: Dialect
    binding: Binding
    soft: bool = False
    names: tuple[str, ...] = field(init=False)
    types: tuple[Type, ...] = field(init=False)

    def __post_init__(self) -> None:
        columns = self.binding.columns
        object.__setattr__(self, "names", tuple(c.name for c in columns))
        object.__setattr__(self, "types", tuple(parse(c.name, c.type) for c in columns))

    @property
    def standard(self) -> bool:
        """Whether the table has one row per key."""
        return not self.binding.delta

    @property
    def marks(self) -> bool:
        """Whether the table has the column `DELETED`: only rows of a key are ever deleted."""
        return self.soft and bool(self.binding.key) and not self.binding.diffs

    @cached_property
    def table(self) -> Sql:
        """The table."""
        return self.dialect.qualified(self.binding.resource)

    @cached_property
    def columns(self) -> tuple[Sql, ...]:
        """The columns of the binding."""
        return tuple(map(self.dialect.identifier, self.names))

    @cached_property
    def places(self) -> tuple[Sql, ...]:
        """As what they are staged."""
        return tuple(identifier(_place(n)) for n in range(len(self.names)))

    @property
    def deleted(self) -> Sql | None:
        """The column that marks deleted rows."""
        return identifier(DELETED) if self.marks else None

    @cached_property
    def declared(self) -> tuple[tuple[str, Sql], ...]:
        """The columns of the table, with their types."""
        own = [
            (name, self.dialect.column_type(kind, key=self.standard and name in self.binding.key))
            for name, kind in zip(self.names, self.types, strict=True)
        ]
        return (*own, *(((DELETED, self.dialect.column_type(_FLAG, key=False)),) if self.marks else ()))

    @cached_property
    def staged(self) -> Staged:
        """Rows to store, with their flags."""
        flag = self.dialect.column_type(_FLAG, key=False)
        declared = [*(kind for _, kind in self.declared[: len(self.names)]), flag, flag]
        names = (*map(_place, range(len(self.names))), "present", "gone")
        return self._staged("rows", names, (*self.types, _FLAG, _FLAG), declared, self._places_of_key)

    @cached_property
    def staged_keys(self) -> Staged:
        """Keys to load."""
        at, names = [self.names.index(name) for name in self.binding.key], self._places_of_key
        declared = [self.declared[n][1] for n in at]
        return self._staged("keys", names, tuple(self.types[n] for n in at), declared, names)

    @property
    def _places_of_key(self) -> tuple[str, ...]:
        return tuple(_place(self.names.index(name)) for name in self.binding.key)

    def _staged(
        self,
        what: str,
        names: tuple[str, ...],
        types: tuple[Type, ...],
        declared: Iterable[Sql],
        key: tuple[str, ...],
    ) -> Staged:
        columns = joined(", ", (compose("{n} {t}", n=identifier(n), t=t) for n, t in zip(names, declared, strict=True)))
        # A temporary table is made once a connection, so its name says what is in it.
        number = blake2b(f"{self.binding.resource}\0{columns.text}".encode(), digest_size=8).hexdigest()
        return Staged(identifier(f"strandline_{what}_{number}"), names, types, columns, key)

    @cached_property
    def index(self) -> tuple[str, Sql] | None:
        """The name of the key's index, and the statement that makes it; None: there is none."""
        if not self.standard:
            return None
        number = blake2b("\0".join((self.binding.resource, *self.binding.key)).encode(), digest_size=8).hexdigest()
        name = f"{INDEX_PREFIX}{number}"
        key = [(self.dialect.identifier(k), self.types[self.names.index(k)]) for k in self.binding.key]
        statement = self.dialect.index(identifier(name), self.table, key)
        return None if statement is None else (name, statement)

    def pairs(self, staged: Staged, patterns: Iterable[NullPattern]) -> list[Pairs]:
        """Return which rows of the table and which staged rows have one key: all of them, or by pattern of NULLs."""
        if self.dialect.same is not None:
            same = self.dialect.same
            every = (compose(same, a=a, b=b) for a, b in self._sides())
            return [Pairs(self.table, staged.table, joined(" AND ", every), Sql("TRUE"), self.names)]
        return [self._by_pattern(staged, pattern) for pattern in sorted(patterns)]

    def _sides(self) -> list[tuple[Sql, Sql]]:
        return [
            (compose("t.{k}", k=self.dialect.identifier(k)), compose("r.{c}", c=self.places[self.names.index(k)]))
            for k in self.binding.key
        ]

    def _by_pattern(self, staged: Staged, pattern: NullPattern) -> Pairs:
        match, among = [], []
        for n, (there, here) in enumerate(self._sides()):
            null = pattern >> n & 1
            match.append(compose("{a} IS NULL AND {b} IS NULL" if null else "{a} = {b}", a=there, b=here))
            among.append(compose("{b} IS NULL" if null else "{b} IS NOT NULL", b=here))
        return Pairs(self.table, staged.table, joined(" AND ", match), joined(" AND ", among), self.names)


def check_names(dialect: Dialect, binding: Binding) -> None:
    """Raise `DefinitionError` if the resource cannot have its name, or the columns not theirs beside each other."""
    dialect.identifier(binding.resource)
    if dialect.fold(binding.resource) == TABLE:
        raise DefinitionError(f"{binding.resource!r} cannot be filled: the driver keeps its checkpoints there")
    dialect.check_table(binding.resource, [column.name for column in binding.columns])


def _place(number: int) -> str:
    return f"c{number}"


def null_patterns(keys: Iterable[pa.ChunkedArray]) -> set[NullPattern]:
    """Return the patterns of NULL that rows have, given the columns of their keys.

    >>> columns = [pa.chunked_array([[1, 2, None]]), pa.chunked_array([["a", None, None]])]
    >>> sorted(null_patterns(columns))
    [0, 2, 3]
    """
    masks: list[NullPattern | np.ndarray[tuple[int], np.dtype[np.int64]]] = [
        np.asarray(pc.is_null(column)).astype(np.int64) << n if column.null_count else 0
        for n, column in enumerate(keys)
    ]
    return {int(pattern) for pattern in np.unique(sum(masks))}


class Pending:
    """The rows that a transaction stores in one table, as `messages.Store` gave them."""

    def __init__(self, target: Target) -> None:
        self.spool = Spool()
        self.present = 0
        """How many of them replace or delete a row."""
        self.staying = 0
        """How many of them are rows that the table has afterwards."""
        self.patterns: set[NullPattern] = set()
        self._target = target

    def add(self, rows: pa.Table) -> None:
        """Add rows.

        Raises:
            DefinitionError: the system cannot store a value; or a row is deleted, and the table only grows.
        """
        target = self._target
        require_held(target.binding, rows, target.dialect.holds)
        if target.standard:
            # A row that was never there need not go.
            rows = rows.filter(pc.or_(rows[EXISTS], pc.invert(rows[DELETE])))
            self.present += int(pc.sum(rows[EXISTS]).as_py() or 0)
            self.staying += int(pc.sum(pc.invert(rows[DELETE])).as_py() or 0)
            if target.dialect.same is None and len(rows):
                self.patterns |= null_patterns(rows[name] for name in target.binding.key)
            flags = {EXISTS: "present", DELETE: "gone"}
        else:
            if not target.marks and pc.any(rows[DELETE]).as_py():
                about = {"collection": target.binding.collection, "resource": target.binding.resource}
                raise DefinitionError(ONLY_GROWS.said(**about))
            flags = {DELETE: "gone"} if target.marks else {}
        placed = rows.select([*target.names, *flags])
        self.spool.add(placed.rename_columns([*map(_place, range(len(target.names))), *flags.values()]))

    def close(self) -> None:
        """Drop the rows."""
        self.spool.close()


_EVERY = Sql("TRUE")


def contents(connection: Connection, target: Target, take: Take) -> None:
    """Hand all rows to ``take``, columns in the order of the binding."""
    text = compose(
        "SELECT {c} FROM {t} AS t WHERE {f}", c=joined(", ", target.columns), t=target.table, f=_living(target)
    )
    connection.read(text, target.names, target.types, take)


def load(connection: Connection, target: Target, keys: pa.Table, take: Take) -> None:
    """Hand the stored rows that have one of ``keys`` to ``take``."""
    with closing(Spool()) as spool:
        spool.add(keys.select(list(target.binding.key)).rename_columns(target.staged_keys.names))
        connection.stage(target.staged_keys, spool)
        for pairs in target.pairs(target.staged_keys, null_patterns(keys[name] for name in target.binding.key)):
            text = compose(
                "SELECT {c} FROM {t} AS t JOIN {r} AS r ON {m} WHERE {f}",
                c=joined(", ", (compose("t.{n}", n=n) for n in target.columns)),
                t=pairs.table,
                r=pairs.staged,
                m=pairs.match,
                f=_living(target),
            )
            connection.read(text, target.names, target.types, take)


def refuse_rows(connection: Connection, target: Target) -> None:
    """Raise `DefinitionError` if the table, which this task has never filled, has rows."""
    if connection.query(compose("SELECT 1 FROM {t} LIMIT 1", t=target.table)):
        raise DefinitionError(FOREIGN_ROWS.said(table=f"table {target.binding.resource!r}"))


def empty(connection: Connection, target: Target, held: KeyRange) -> None:
    """Remove the rows of a key range.

    Raises:
        DefinitionError: the table has rows, and the range is not `WHOLE`: no table says which split a row belongs to.
    """
    if held != WHOLE and connection.query(compose("SELECT 1 FROM {t} LIMIT 1", t=target.table)):
        about = {
            "table": f"table {target.binding.resource!r}",
            "begin": held.begin,
            "end": held.end,
            "item": target.binding.task,
        }
        raise DefinitionError(SPLIT_ALONE.said(**about))
    connection.change(compose("DELETE FROM {t}", t=target.table))


def store(connection: Connection, target: Target, pending: Pending) -> None:
    """Replace, insert and delete rows, whose flags say whether a key exists; the flags must be right.

    Raises:
        DefinitionError: a key that should be new exists already; the message names it.
        CorruptionError: rows that should exist are missing: another program changed the table.  Or the database did not
            take all rows: a trigger swallows them.
    """
    rows = pending.spool
    if not rows.rows:
        return
    if not target.standard:
        columns = (*target.columns, *((target.deleted,) if target.deleted is not None else ()))
        taken = connection.append(target.table, columns, target.staged.types[: len(columns)], rows)
        _require_all(target, rows.rows, taken)
        return
    connection.stage(target.staged, rows)
    every = target.pairs(target.staged, pending.patterns)
    if _merged(connection, target, every, rows.rows):
        return
    for pairs in every:
        _refuse_known(connection, target, pairs)
    if pending.present:
        changed = sum(_take_away(connection, target, pairs) for pairs in every)
        if changed != pending.present:
            about = {"wanted": pending.present, "found": changed, "item": target.binding.task}
            name, filled = f"table {target.binding.resource!r}", target.binding.collection
            raise CorruptionError(ROWS_MISSING.said(table=name, collection=filled, **about))
    if target.deleted is not None:  # what was deleted once is inserted anew
        for pairs in every:
            new = compose("NOT r.{p} AND t.{d}", p=PRESENT, d=target.deleted)
            connection.change(target.dialect.delete(pairs, new))
    _require_all(target, pending.staying, connection.change(_insert(target)))


def _require_all(target: Target, rows: int, taken: int) -> None:
    if taken != rows:
        raise CorruptionError(SWALLOWED.said(table=target.binding.resource, rows=rows, taken=taken))


def _merged(connection: Connection, target: Target, every: list[Pairs], rows: int) -> bool:
    """Store by `Dialect.merge`; return whether each row did what its flags say.  If not, nothing was done."""
    columns = list(zip(target.columns, target.places, strict=True))
    merges = [target.dialect.merge(pairs, columns, target.deleted) for pairs in every]
    if None in merges:
        return False
    connection.change(Sql("SAVEPOINT strandline_merge"))
    if sum(connection.change(merge) for merge in merges if merge is not None) == rows:
        return True
    connection.change(Sql("ROLLBACK TO SAVEPOINT strandline_merge"))
    return False


def _living(target: Target) -> Sql:
    """Return the condition that a row of the table is not marked as deleted."""
    return _EVERY if target.deleted is None else compose("NOT t.{d}", d=target.deleted)


def _take_away(connection: Connection, target: Target, pairs: Pairs) -> int:
    """Delete the rows that are replaced, and delete or mark those that go; return how many there were."""
    if target.deleted is None:
        return connection.change(target.dialect.delete(pairs, compose("r.{p}", p=PRESENT)))
    holes = {"p": PRESENT, "g": GONE, "d": target.deleted}
    replaced = compose("r.{p} AND NOT r.{g} AND NOT t.{d}", **holes)
    gone = compose("r.{p} AND r.{g} AND NOT t.{d}", **holes)
    deleted = connection.change(target.dialect.delete(pairs, replaced))
    return deleted + connection.change(target.dialect.update(pairs, target.deleted, Sql("TRUE"), gone))


def _insert(target: Target) -> Sql:
    marked = [] if target.deleted is None else [(target.deleted, Sql("FALSE"))]
    columns = [*zip(target.columns, target.places, strict=True), *marked]
    return compose(
        "INSERT INTO {t} ({c}) SELECT {p} FROM {r} AS r WHERE NOT {g}",
        t=target.table,
        c=joined(", ", (there for there, _ in columns)),
        p=joined(", ", (placed for _, placed in columns)),
        r=target.staged.table,
        g=GONE,
    )


def _refuse_known(connection: Connection, target: Target, pairs: Pairs) -> None:
    at = [target.names.index(name) for name in target.binding.key]
    text = compose(
        "SELECT {p} FROM {r} AS r JOIN {t} AS t ON {m} WHERE NOT r.{present} AND {f} LIMIT 1",
        p=joined(", ", (compose("r.{c}", c=target.places[n]) for n in at)),
        r=pairs.staged,
        t=pairs.table,
        m=pairs.match,
        present=PRESENT,
        f=_living(target),
    )
    known: list[pa.Table] = []
    connection.read(text, target.binding.key, [target.types[n] for n in at], known.append)
    if known:
        raise second_row(target.binding, known[0])
