"""Excerpts: pieces of a user's SQL that are passed to Spark verbatim, with the values of their question marks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from strandline.errors import DefinitionError, Position


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A piece of a text and its position there; no code changes it or embeds it in another text.

    ``given``: a value for each question mark, in the order of the text.
    """

    text: str
    start: Position
    given: tuple[pa.Scalar, ...] = ()


@contextmanager
def within(start: Position | None) -> Iterator[None]:
    """Translate the position of a `DefinitionError` in an excerpt to its position in the whole text.

    The excerpt begins at ``start``.  An error without a position gets ``start``; if ``start`` is None, nothing changes.

    >>> with within(Position(3, 10)):
    ...     raise DefinitionError("no such column", Position(1, 5))
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: no such column (at line 3, column 14)
    """
    try:
        yield
    except DefinitionError as error:
        if start is None:
            raise
        position = start if error.position is None else error.position.after(start)
        raise DefinitionError(error.message, position) from error
