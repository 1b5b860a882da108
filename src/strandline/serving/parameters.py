"""Parameters: the values that a client sends for the question marks of a statement.

They stay values: a statement carries them beside its text, and Spark has them as literals of the type that the client
gave them (`engine.asked`).  So what is in a value can never be read as SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from strandline.algebra.notation import Excerpt
from strandline.algebra.schema import quote
from strandline.compute.plan.sql import question_marks
from strandline.controller.language import statements
from strandline.errors import InvalidUsage

T = TypeVar("T", Excerpt, statements.Query)


def count(text: str) -> int:
    """Return how many parameters a statement has.

    >>> count("SELECT '?', ? FROM t -- ?")
    1
    """
    return len(question_marks(text))


def bound(statement: statements.Statement, wanted: int, values: Sequence[pa.Scalar]) -> statements.Statement:
    """Return a statement with a value for each of its question marks, of which there are ``wanted``.

    >>> bound(statements.parse("DELETE FROM t WHERE a = ?"), 1, [pa.scalar(1)]).where.given
    (<pyarrow.Int64Scalar: 1>,)

    Raises `InvalidUsage` if there are more or fewer values, or question marks where a statement can have none.
    """
    if wanted != len(values):
        raise InvalidUsage(f"the statement has {wanted} parameters, and {len(values)} values were given")
    if not values:
        return statement
    left = iter(values)

    def take(excerpt: T) -> T:
        return replace(excerpt, given=tuple(islice(left, count(excerpt.text))))

    match statement:
        case statements.Query():
            found: statements.Statement = take(statement)
        case statements.Insert(query=query):
            found = replace(statement, query=take(query))
        case statements.Delete(where=where):
            found = replace(statement, where=where and take(where))
        case statements.Update(assignments=assignments, where=where):
            taken = tuple(replace(each, value=take(each.value)) for each in assignments)
            found = replace(statement, assignments=taken, where=where and take(where))
        case _:
            raise InvalidUsage("a query, an INSERT, an UPDATE and a DELETE have parameters, and no other statement has")
    if next(left, None) is not None:
        raise InvalidUsage("a parameter stands where a value may stand, and not in the place of a name")
    return found


def rows(table: pa.Table) -> list[tuple[pa.Scalar, ...]]:
    """Return the rows of a table, each with its values as they are.

    >>> rows(pa.table({"1": [1, None]}))
    [(<pyarrow.Int64Scalar: 1>,), (<pyarrow.Int64Scalar: None>,)]
    """
    return [tuple(column[place] for column in table.columns) for place in range(table.num_rows)]


def identifier(name: str) -> str:
    """Return a name as SQL has it, in quotes.

    >>> identifier("a`b c")
    '`a``b c`'
    """
    return quote(name)
