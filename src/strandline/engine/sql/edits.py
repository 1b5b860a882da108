"""Edits: the rows that an INSERT, UPDATE or DELETE adds and removes, as Spark finds them.

An author's condition and values are parsed by Spark, each as one expression over the table's own frame.  No code puts
them, or a name, into a text, so nothing can be read as more than one expression, and a position that Spark reports is a
position in the author's text.

An UPDATE reads its rows once and gives both the old row and the new one.  Reading them twice could choose different
rows (a random condition), and then rows would vanish or appear.

What is written into a column follows Spark's own rule for tables, ANSI store assignment: a number may become another
number or a text, a text never becomes a number without a CAST, and a value that does not fit fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    DatetimeType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
)

from strandline.algebra.notation import Excerpt, within
from strandline.algebra.schema import DIFF, TIME, Schema, quote
from strandline.algebra.schema import Column as Described
from strandline.engine.asked import expressions
from strandline.engine.asked.expressions import of_expression, refusal
from strandline.engine.frames import inline
from strandline.engine.frames.ddl import type_text
from strandline.engine.session import reach
from strandline.errors import DefinitionError, InvalidUsage
from strandline.plane import Edit


def edited(table: DataFrame, schema: Schema, edit: Edit, names: Sequence[str]) -> DataFrame:
    """Return what ``edit`` does to the rows of ``table``, as updates at time 0; ``names`` may be read in subqueries.

    Raises `DefinitionError` with a position where Spark refuses an expression.
    """
    chosen = table.alias(edit.alias)
    if edit.where is not None:
        with _reading(edit.where, names):
            reach.refuse_unread(table.sparkSession, edit.where.text, expression=True)
            chosen = expressions.chosen(chosen, edit.where)
            reach.refuse(chosen)
    old = [F.col(quote(column.name)) for column in schema]
    if not edit.values:
        return chosen.select(*old, *_stamp(-1))
    new = [
        _set(chosen, column, edit.values[column.name.lower()], names) if column.name.lower() in edit.values else kept
        for column, kept in zip(schema, old, strict=True)
    ]
    # The structs refuse what would change the number of rows: `explode(…)` cannot stand inside of one.
    both = chosen.select(F.struct(*old, *_stamp(-1)).alias("old"), F.struct(*new, *_stamp(1)).alias("new"))
    return both.select(F.inline(F.array("old", "new")))


def kinds(table: DataFrame, edit: Edit, names: Sequence[str], counts: Mapping[Excerpt, int]) -> list[pa.DataType]:
    """Return what is to stand in the question marks of ``edit``, in the order of the text; ``counts``: how many.

    Raises as `edited`.
    """
    rows, found = table.alias(edit.alias), list[pa.DataType]()
    for excerpt in edit.excerpts:
        if counts[excerpt]:
            with _reading(excerpt, names):
                reach.refuse_unread(table.sparkSession, excerpt.text, expression=True)
                found += of_expression(rows, excerpt.text, counts[excerpt])
    return found


def inserted(answer: DataFrame, columns: Sequence[str], schema: Schema) -> DataFrame:
    """Return ``answer``, whose columns are those of the table called ``columns``, as insertions; the others are NULL.

    Raises `DefinitionError` if there are more or fewer, or one cannot be stored.
    """
    if len(answer.columns) != len(columns):
        raise DefinitionError(
            f"{_counted(len(columns), 'column')} ({', '.join(columns)}) and {_counted(len(answer.columns), 'value')}"
        )
    named = answer.toDF(*(name.lower() for name in columns))
    given = {field.name: field.dataType for field in named.schema.fields}
    cells = []
    for column in schema:
        kind = given.get(column.name.lower())
        if kind is not None and (refused := _unassignable(kind, column)):
            raise DefinitionError(refused)
        cells.append(F.lit(None) if kind is None else F.col(quote(column.name.lower())))
    return named.select(*(_stored(cell, column) for cell, column in zip(cells, schema, strict=True)), *_stamp(1))


def given(rows: DataFrame, schema: Schema, *, diff: int) -> DataFrame:
    """Return a caller's frame as updates at time 0 with ``diff``: columns by name; of insertions, others are NULL.

    Raises `InvalidUsage` naming a column that is missing, unknown, or cannot be stored.
    """
    named = inline.match_names(rows.columns, schema, some=diff > 0)
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    cells = []
    for column in schema:
        name = named.get(column.name.lower())
        if name is not None and (refused := _unassignable(kinds[name], column)):
            raise InvalidUsage(refused)
        cells.append(F.lit(None) if name is None else F.col(quote(column.name)))
    return rows.select(*(_stored(cell, column) for cell, column in zip(cells, schema, strict=True)), *_stamp(diff))


def spark_assigns(source: DataType, target: DataType) -> bool:
    """Tell whether Spark stores a value of type ``source`` in a column of type ``target`` (ANSI store assignment).

    >>> from pyspark.sql.types import IntegerType, LongType, StringType
    >>> spark_assigns(LongType(), IntegerType()), spark_assigns(StringType(), IntegerType())
    (True, False)
    """
    match source, target:
        case (NullType(), _) | (NumericType(), NumericType()) | (DatetimeType(), DatetimeType()):
            return True
        case ArrayType(), ArrayType():
            return spark_assigns(source.elementType, target.elementType)
        case MapType(), MapType():
            return spark_assigns(source.keyType, target.keyType) and spark_assigns(source.valueType, target.valueType)
        case StructType(), StructType():
            return len(source.fields) == len(target.fields) and all(
                spark_assigns(one.dataType, other.dataType)
                for one, other in zip(source.fields, target.fields, strict=True)
            )
        case AtomicType(), StringType():
            return True
        case _:
            return source == target


def _set(chosen: DataFrame, column: Described, value: Excerpt, names: Sequence[str]) -> Column:
    """Return what UPDATE puts into ``column``, once Spark has analysed it next to a column of each row."""
    with _reading(value, names):
        reach.refuse_unread(chosen.sparkSession, value.text, expression=True)
        beside = [F.col(quote(name)) for name in chosen.columns[:1]]
        cell, analysed = expressions.analysed(
            chosen,
            value,
            lambda cell: chosen.select(F.struct(*beside), F.struct(cell.alias("value")).alias("set")),
        )
        reach.refuse(analysed)
        kind = analysed.schema["set"].dataType
        assert isinstance(kind, StructType), "a struct was selected"
        if refused := _unassignable(kind.fields[0].dataType, column):
            raise DefinitionError(refused)
    return _stored(cell, column)


def _stored(cell: Column, column: Described) -> Column:
    return cell.cast(column.type).alias(column.name)


def _unassignable(source: DataType, column: Described) -> str:
    if spark_assigns(source, DataType.fromDDL(column.type)):
        return ""
    return (
        f"column {column.name!r} is {column.type} and its value is {type_text(source)}; "
        f"write CAST(… AS {column.type}) if that is meant"
    )


def _stamp(diff: int) -> tuple[Column, Column]:
    return F.lit(0).cast("bigint").alias(TIME), F.lit(diff).cast("bigint").alias(DIFF)


@contextmanager
def _reading(excerpt: Excerpt, names: Sequence[str]) -> Iterator[None]:
    """Raise what Spark refuses in an excerpt as a `DefinitionError` with its position in the author's text."""
    with within(excerpt.start):
        try:
            yield
        except PySparkException as error:
            raise refusal(error, excerpt.text, names) from error


def _counted(count: int, what: str) -> str:
    """Return a number with its noun.

    >>> _counted(1, "value"), _counted(2, "value")
    ('1 value', '2 values')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"
