"""The rows of a binding's table: load, store, empty.  Every function works inside the caller's transaction.

A transaction is stored by one `Dialect.merge`, where there is one.  Else, by statements that every system has: rows
that exist are deleted, and rows that stay are inserted.  Either way the flags that say which keys exist are checked.
"""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa

from strandline.errors import CorruptionError, DefinitionError
from strandline.materialize.driver import FOREIGN_ROWS, ROWS_MISSING, SWALLOWED
from strandline.materialize.drivers.sql.connection import Connection, Take
from strandline.materialize.drivers.sql.dialect import Pairs
from strandline.materialize.drivers.sql.target import GONE, PRESENT, Pending, Target, null_patterns
from strandline.materialize.drivers.sql.text import Sql, compose, joined
from strandline.materialize.protocol.refusals import SPLIT_ALONE
from strandline.materialize.protocol.task import WHOLE, KeyRange
from strandline.materialize.spool import Spool
from strandline.materialize.stores import second_row

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
