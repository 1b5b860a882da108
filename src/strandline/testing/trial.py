"""A view under test: some rows, some changes, and what the view must hold then, without a project.

It is kept as it would be at a location, on Spark: after each change its rows are compared with those that are expected,
and with what its query gives when it is computed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import pyarrow as pa

from strandline.algebra.arrow_types import arrow_schema, spark_type
from strandline.algebra.schema import DIFF, Column, Schema
from strandline.client import Environment
from strandline.client import open as opened
from strandline.controller.language import arguments, statements
from strandline.errors import CollectionError, DefinitionError, InvalidUsage, Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows: TypeAlias = "Sequence[Mapping[str, Any]] | pa.Table"
"""Rows as `Environment.insert` takes them: dicts, or an Arrow, pandas or polars table."""
Change: TypeAlias = "str | Mapping[str, Rows]"
"""A statement; or rows by table, each inserted, or with ``__diff`` -1 deleted: all at one time."""

NAME: Final = "view"
"""What a view is called of which only the query is given."""
SHOWN_MAX: Final = 10
"""So many rows of a difference are shown."""


def view(
    sql: str,
    given: Mapping[str, Rows],
    changes: Sequence[Change] = (),
    expect: Rows | Sequence[Rows] | None = None,
    *,
    spark: SparkSession | None = None,
) -> None:
    """Check what a view holds, and that it stays right while its tables change.

        strandline.testing.view(
            "SELECT city, count(*) AS n FROM orders GROUP BY city",
            given={"orders (id INT, city STRING)": [{"id": 1, "city": "Delft"}]},
            changes=["INSERT INTO orders VALUES (2, 'Delft')", {"orders": [{"id": 1, "city": "Delft", "__diff": -1}]}],
            expect=[{"city": "Delft", "n": 1}],
        )

    ``sql``: its query, or the whole CREATE MATERIALIZED VIEW.  ``given``: the rows that its tables begin with; a name
    may be followed by the table's columns, as in CREATE TABLE, and without them the types are those of the rows.
    ``changes``: what happens then, each at a time of its own.  ``expect``: the view's rows in any order after the last
    change; or a list of them for the beginning and for after each change; None: only that it is kept right is checked.
    ``spark``: an existing session; without one, one is built, which the next call uses again.

    Raises `AssertionError` that shows the rows that differ, `DefinitionError` where a text is wrong, and
    `CollectionError` if the view has errors.
    """
    with opened("memory://", spark=spark) as env:
        for table, rows in given.items():
            _begin(env, table, rows)
        name = _define(env, sql)
        wanted = _each(expect, len(changes) + 1)
        for number, (change, rows) in enumerate(zip((None, *changes), wanted, strict=True)):
            if change is not None:
                _apply(env, change)
            env.tick()
            when = f"after change {number} of {len(changes)}" if number else "before any change"
            try:
                if rows is not None:
                    _compare(env, name, rows, when)
                found = env.verify(name)
            except CollectionError as error:
                raise CollectionError(f"{when}: {error}", error.errors, error.since) from error
            if not found.ok:
                raise AssertionError(
                    f"{when} {name!r} is not what its query gives when it is computed at once: {found}"
                )


def _begin(env: Environment, table: str, rows: Rows) -> None:
    """Make a table and insert its first rows."""
    held = arguments.arrow(rows, table, ())
    if "(" in table:
        made = statements.parse(f"CREATE TABLE {table}")
        if not isinstance(made, statements.CreateTable):
            raise DefinitionError(f"{table!r} is no table's name with its columns: write 'name (column TYPE, …)'")
    elif held.num_columns:
        columns = Schema(tuple(Column(field.name, spark_type(field.name, field.type)) for field in held.schema))
        made = statements.CreateTable(name=table, columns=columns.ddl)
    else:
        raise InvalidUsage(f"table {table!r} has no rows to tell its columns by: write '{table} (column TYPE, …)'")
    env.execute(made)
    if held.num_rows:
        env.insert(made.name, held)


def _define(env: Environment, sql: str) -> str:
    """Create the view; return its name."""
    made = statements.parse(sql)
    if isinstance(made, statements.Query):
        made = statements.CreateView(name=NAME, query=sql, start=Position(1, 1))
    if not isinstance(made, statements.CreateView):
        raise DefinitionError("give a query, or a whole CREATE MATERIALIZED VIEW")
    env.execute(made)
    return made.name


def _apply(env: Environment, change: Change) -> None:
    """Make one change, at one time."""
    if isinstance(change, str):
        env.execute(change)
        return
    with env.transaction() as together:
        for table, rows in change.items():
            inserted, deleted = _by_sign(table, arguments.arrow(rows, table, ()))
            if inserted.num_rows:
                together.insert(table, inserted)
            if deleted.num_rows:
                together.delete(table, deleted)


def _by_sign(table: str, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows to insert, and those to delete, each as often as its ``__diff`` says; without one, once."""
    if DIFF not in rows.column_names:
        return rows, rows.slice(0, 0)
    given = [1 if diff is None else diff for diff in rows[DIFF].to_pylist()]
    if wrong := [diff for diff in given if not diff or diff != int(diff)]:
        raise InvalidUsage(f"a change of {table!r} has a {DIFF} of {wrong[0]!r}: 1 inserts the row, -1 deletes it")
    plain, diffs = rows.drop_columns([DIFF]), [int(diff) for diff in given]
    inserted = [at for at, diff in enumerate(diffs) for _ in range(diff)]
    deleted = [at for at, diff in enumerate(diffs) for _ in range(-diff)]
    return plain.take(pa.array(inserted, pa.int64())), plain.take(pa.array(deleted, pa.int64()))


def _each(expect: Rows | Sequence[Rows] | None, times: int) -> list[Rows | None]:
    """Return what is expected at each of so many times; None: nothing is said of that time."""
    several = isinstance(expect, Sequence) and expect and not isinstance(expect[0], Mapping)
    if not several:
        return [None] * (times - 1) + [cast("Rows | None", expect)]
    listed = list(cast("Sequence[Rows]", expect))
    if len(listed) != times:
        raise InvalidUsage(
            f"`expect` has rows for {len(listed)} times, and there are {times}: the beginning, and after each change"
        )
    return listed


def _compare(env: Environment, name: str, expected: Rows, when: str) -> None:
    """Raise `AssertionError` unless the view holds the rows that are expected."""
    schema = arrow_schema(env.collections()[name][1]).remove_metadata()
    given = arguments.arrow(expected, "expect", schema.names)
    if {*given.column_names} != {*schema.names}:
        raise AssertionError(f"{name!r} has the columns {schema.names}, and `expect` has {given.column_names}")
    wanted = pa.table([_values(given[field.name], field, name) for field in schema], schema=schema)
    found = env.collection(name).snapshot().toArrow().select(schema.names).cast(schema)
    there, due = (Counter(map(repr, table.to_pylist())) for table in (found, wanted))
    if there != due:
        differences = [*_shown("missing", due - there), *_shown("not expected", there - due)]
        raise AssertionError("\n".join([f"{name!r} {when}:", *differences]))


def _values(given: pa.ChunkedArray, field: pa.Field, view: str) -> pa.ChunkedArray:
    """Return what is expected of a column, as values of its type; none of them may become another one by that."""
    if given.null_count == len(given):
        return pa.chunked_array([pa.nulls(len(given), field.type)])
    kinds = (pa.types.is_boolean, pa.types.is_string, pa.types.is_temporal)
    try:
        if any(is_one(given.type) != is_one(field.type) for is_one in kinds):
            raise ValueError(f"its values are {given.type}")
        if pa.types.is_integer(given.type) and pa.types.is_decimal(field.type):
            whole = [None if n is None else Decimal(n) for n in given.to_pylist()]
            return pa.chunked_array([pa.array(whole, field.type)])
        made = given.cast(field.type)
        if repr(made.cast(given.type).to_pylist()) != repr(given.to_pylist()):
            raise ValueError("it has no such values")
    except (pa.ArrowException, ValueError) as error:
        said = f"`expect` does not fit column {field.name!r} of {view!r}, which is {field.type}: {error}"
        raise InvalidUsage(said) from error
    return made


def _shown(what: str, rows: Counter[str]) -> Iterator[str]:
    """Yield lines that show some rows, which are so many times too few or too many."""
    for row, times in list(rows.items())[:SHOWN_MAX]:
        yield f"  {what}: {row}" + (f" ({times} times)" if times > 1 else "")
    if len(rows) > SHOWN_MAX:
        yield f"  and {len(rows) - SHOWN_MAX} other rows are {what}"
