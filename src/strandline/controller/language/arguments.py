"""Arguments: what the public calls take, checked before anything is done with it.

A wrong argument is `InvalidUsage` that names it, what it should be and what it is, and nothing was changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from strandline.controller.location.config import Mode
from strandline.errors import InvalidUsage
from strandline.frontier import TIME_MAX

if TYPE_CHECKING:
    from strandline.controller.language import statements

ROWS = "a Spark or pandas DataFrame, an Arrow table, or a list of dicts"


def text(value: object, what: str) -> str:
    """Return ``value`` if it is a text with something in it.

    >>> text(3, "the table's name")
    Traceback (most recent call last):
        ...
    strandline.errors.InvalidUsage: the table's name must be a str, and this is an int: 3
    """
    if not isinstance(value, str):
        raise _wrong(what, "a str", value)
    if not value.strip():
        raise InvalidUsage(f"{what} is empty")
    return value


def names(value: object, what: str) -> tuple[str, ...]:
    """Return ``value`` if it is a list of texts.

    >>> names(["a", "b"], "drop")
    ('a', 'b')
    >>> names("a", "drop")
    Traceback (most recent call last):
        ...
    strandline.errors.InvalidUsage: drop must be a list of names, and this is a str: 'a'
    """
    if not isinstance(value, list | tuple):
        raise _wrong(what, "a list of names", value)
    return tuple(text(each, f"a name of {what}") for each in value)


def one_or_more(value: object, what: str) -> tuple[str, ...]:
    """Return ``value`` if it is a text, or a list of texts.

    >>> one_or_more("a", "file"), one_or_more(["a", "b"], "file")
    (('a',), ('a', 'b'))
    """
    return names([value] if isinstance(value, str) else value, what)


def opening(mode: str | None, *, read_only: bool) -> Mode:
    """Return the mode that is asked for.  Raises `InvalidUsage` for one that there is not, or two at once."""
    modes = [each.value for each in Mode]
    if mode is None:
        return Mode.READ if read_only else Mode.FULL
    if mode not in modes:
        raise InvalidUsage(f"there is no mode {mode!r}; there are {', '.join(modes)}")
    if read_only and mode == Mode.FULL.value:
        raise InvalidUsage("read_only and mode='full' contradict each other; leave one out")
    return Mode(mode)


def statement(sql: object) -> statements.Statement:
    """Return the statement that a caller gave, or gave the text of."""
    from strandline.controller.language import statements  # a question without SQL needs no parser

    if isinstance(sql, statements.Statement):
        return sql
    return statements.parse(text(sql, "the statement"))


def query(sql: object) -> str:
    """Return the text of the query that a caller gave."""
    return asked(statement(sql)).text


def question(sql: object) -> statements.Question:
    """Return the query that a caller gave, or the statement that answers with rows as a query does."""
    from strandline.controller.language.showing import Show

    found = statement(sql)
    return found if isinstance(found, Show) else asked(found)


def asked(found: statements.Statement) -> statements.Query:
    """Return a query.  Raises `InvalidUsage` for another statement."""
    from strandline.controller.language import statements

    if not isinstance(found, statements.Query):
        how = "run it with `strandline sql -f FILE`, or in Python with env.execute(…)"
        raise InvalidUsage(f"{type(found).__name__} is no query: {how}")
    return found


def token(value: object) -> str | None:
    """Return ``value`` if it can be the token of a commit."""
    return None if value is None else text(value, "the token")


def time(value: object, what: str) -> int:
    """Return ``value`` if it is a time: milliseconds, not negative.

    >>> time(-5, "as_of")
    Traceback (most recent call last):
        ...
    strandline.errors.InvalidUsage: as_of must be a time (0 or more milliseconds), and this is -5
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(what, "an int", value)
    if not 0 <= value <= TIME_MAX:
        raise InvalidUsage(f"{what} must be a time (0 or more milliseconds), and this is {value}")
    return int(value)


def maybe_time(value: object, what: str) -> int | None:
    """Return ``value`` if it is None or a time."""
    return None if value is None else time(value, what)


def window(lower: object, upper: object) -> tuple[int, int]:
    """Return the bounds of a stretch of time, of which the lower one is not above the upper."""
    first, last = time(lower, "lower"), time(upper, "upper")
    if first > last:
        raise InvalidUsage(f"lower ({first}) is after upper ({last})")
    return first, last


def seconds(value: object, what: str) -> float | None:
    """Return ``value`` if it is None or a number of seconds, not negative."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(what, "a number of seconds", value)
    if not value >= 0:
        raise InvalidUsage(f"{what} must be 0 or more seconds, and this is {value}")
    return float(value)


def maybe_count(value: object, what: str) -> int | None:
    """Return ``value`` if it is None or a whole number, not negative."""
    return None if value is None else count(value, what)


def count(value: object, what: str) -> int:
    """Return ``value`` if it is a whole number, not negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(what, "an int", value)
    if value < 0:
        raise InvalidUsage(f"{what} must be 0 or more, and this is {value}")
    return int(value)


def keys(value: object) -> list[Mapping[str, Any]]:
    """Return the keys that a caller gave: one, or several.

    >>> keys({"id": 3})
    [{'id': 3}]
    """
    listed = [value] if isinstance(value, Mapping) else value
    if not isinstance(listed, Sequence) or isinstance(listed, str | bytes):
        raise _wrong("the key", "a dict of column names and values, or a list of such", value)
    for each in listed:
        if not isinstance(each, Mapping) or not all(isinstance(name, str) for name in each):
            raise _wrong("the key", "a dict of column names and values", each)
    return list(listed)


def instance(value: object, kind: type | tuple[type, ...], what: str, wanted: str) -> None:
    """Return if ``value`` is of ``kind``, which the error describes as ``wanted``."""
    if not isinstance(value, kind):
        raise _wrong(what, wanted, value)


def refuse(what: str, wanted: str, value: object) -> NoReturn:
    """Raise `InvalidUsage`: ``what`` must be ``wanted``, and is not."""
    raise _wrong(what, wanted, value)


def is_spark(rows: object) -> bool:
    """Return whether ``rows`` is a frame of Spark's."""
    return hasattr(rows, "sparkSession") and hasattr(rows, "schema")


def arrow(rows: object, table: str, names: Sequence[str]) -> pa.Table:
    """Return a caller's rows for ``table``, whose columns are ``names``, as an Arrow table.

    pandas' missing values (None, NaN, NaT) are NULL, and its index is left out.
    """
    try:
        if isinstance(rows, pa.Table):
            return rows
        if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
            return pa.Table.from_pandas(rows, preserve_index=False)
        if hasattr(rows, "__arrow_c_stream__") and not hasattr(rows, "type"):  # a record batch, polars, DuckDB
            return pa.table(rows)
        return _listed(rows, table, names)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidUsage(f"table {table!r}: the rows cannot be read: {error}") from error


def _listed(rows: object, table: str, names: Sequence[str]) -> pa.Table:
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        raise _wrong(f"table {table!r}: rows", ROWS, rows)
    listed: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise _wrong(f"table {table!r}: row {number}", "a dict of column names and values", row)
        listed.append(row)
    given = list(dict.fromkeys(name for row in listed for name in row)) or list(names)
    columns = {}
    for name in given:
        values = [row.get(name) for row in listed]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            number = 1 + bisect_left(range(len(values)), True, key=partial(_unreadable, values))
            raise InvalidUsage(f"table {table!r}: row {number}: column {name!r} cannot be read: {error}") from error
    return pa.table(columns)


def _unreadable(values: list[Any], last: int) -> bool:
    """Return whether values up to the ``last`` are no column of Arrow's: one is too large, or they are of two types."""
    try:
        pa.array(values[: last + 1])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return True
    return False


def _wrong(what: str, wanted: str, value: object) -> InvalidUsage:
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    shown = repr(value)
    added = f": {shown}" if len(shown) <= 60 else ""  # one line
    return InvalidUsage(
        f"{what} must be {wanted}, and this is {'None' if value is None else f'{article} {kind}{added}'}"
    )
