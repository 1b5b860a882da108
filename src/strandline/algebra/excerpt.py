"""Excerpts: pieces of a person's SQL that Spark reads as they were written.

Source: design page "the map" (decision 10: Spark stays the authority on what an expression means).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from strandline.errors import DefinitionError, Position


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A piece of a text and where it begins there: no code changes it or puts it into another text."""

    text: str
    start: Position


@contextmanager
def within(start: Position | None) -> Iterator[None]:
    """Let a `DefinitionError` about a piece of text that begins at ``start`` tell its place in the whole text.

    A position is moved; an error without one gets ``start`` (None: the place is not known, and nothing changes).

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
