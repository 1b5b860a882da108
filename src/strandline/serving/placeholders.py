"""Placeholders: which type each parameter of a statement has, as far as its place shows it.

A client may ask before it sends values; one that converts them itself (JDBC) sends what it was answered.  A parameter
that is compared with a column, or inserted into one, has the column's type; any other is a text, which Spark casts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from sqlglot import exp

from strandline.algebra.arrow_types import arrow_schema
from strandline.algebra.schema import Schema
from strandline.compute.plan.sql.dialect import parse, relations
from strandline.controller.language import statements

_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.In, exp.Between, exp.Like)


def types(statement: statements.Statement, count: int, tables: Mapping[str, Schema]) -> pa.Schema:
    """Return the types of ``count`` parameters, under their numbers; ``tables``: the columns of collections, by name.

    >>> from strandline.algebra.schema import Column
    >>> t = {"t": Schema((Column("a", "int"), Column("b", "date")))}
    >>> types(statements.parse("SELECT ? FROM t WHERE b >= ? AND a IN (?, 2)"), 3, t).types
    [DataType(string), DataType(date32[day]), DataType(int32)]
    >>> types(statements.parse("INSERT INTO T (b, a) VALUES (?, ?), (?, 1)"), 3, t).types
    [DataType(date32[day]), DataType(int32), DataType(date32[day])]
    """
    known = {name.lower(): schema for name, schema in tables.items()}
    match statement:
        case statements.Query(text):
            found = list(_compared(text, known))
        case statements.Insert(table, columns, query):
            found = list(_inserted(query.text, known.get(table.lower()), [name for name, _ in columns]))
        case _:
            found = []
    if len(found) != count:
        found = [pa.string()] * count
    return pa.schema([(str(number), kind) for number, kind in enumerate(found, start=1)])


def _compared(text: str, known: Mapping[str, Schema]) -> Iterator[pa.DataType]:
    tree = parse(text)
    if tree is None:
        return
    columns = _columns(known[table.name.lower()] for table in relations(tree) if table.name.lower() in known)
    for place in tree.find_all(exp.Placeholder, bfs=False):
        beside = place.find_ancestor(*_COMPARED)
        named = None if beside is None else beside.this if isinstance(beside.this, exp.Column) else beside.expression
        yield columns.get(named.name.lower(), pa.string()) if isinstance(named, exp.Column) else pa.string()


def _inserted(text: str, table: Schema | None, names: list[str]) -> Iterator[pa.DataType]:
    tree = parse(text)
    if not isinstance(tree, exp.Values) or table is None:
        return
    columns, order = _columns([table]), [name.lower() for name in names or table.names]
    for row in tree.expressions:
        for name, cell in zip(order, row.expressions, strict=False):
            for place in cell.find_all(exp.Placeholder):
                yield columns.get(name, pa.string()) if place is cell else pa.string()


def _columns(schemas: Iterator[Schema] | list[Schema]) -> dict[str, pa.DataType]:
    return {field.name.lower(): field.type for schema in schemas for field in arrow_schema(schema)}
