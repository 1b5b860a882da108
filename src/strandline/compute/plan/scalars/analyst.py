"""Spark's opinion, as the planner sees it: names and types of a query over empty relations.

Spark is the authority on types and functions.  The planner asks it for the schema of what the author wrote, for the
types it needs on the way, and in the end for the schema of what it made of it; a test may answer in Spark's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from strandline.algebra.doubts import Doubt
from strandline.algebra.nodes import Node
from strandline.algebra.schema import Schema

T = TypeVar("T")


class Analyst(Protocol):
    """Analyses queries; runs none."""

    @property
    def functions(self) -> frozenset[str]:
        """The functions, lower-case, that this process can call besides Spark's own; all have a definite value."""
        ...

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        """Return the schema of the query ``sql`` in which each of ``relations`` is a table.

        ``ours``: it is made of what an author wrote that was accepted, so it reaches nothing that the author's text
        does not.

        Raises `DefinitionError`, with position and candidates where Spark gives them, for what Spark refuses.
        """
        ...

    def doubts(self, sql: str, relations: Mapping[str, Schema], *, ordering: bool) -> tuple[Doubt, ...]:
        """Return what may leave the query ``sql``, which is accepted, without one answer.

        ``ordering``: also what may only lean on the order of rows.
        """
        ...

    def same(self, sql: str, other: str, relations: Mapping[str, Schema]) -> bool:
        """Tell whether ``sql``, which is accepted, and ``other``, which may not be, are the same query to Spark."""
        ...

    def compared(self, left: str, right: str) -> str | None:
        """Return the type in which Spark compares values of these two types for equality.

        None: it compares them in none, or in one that no collection can hold.
        """
        ...

    def made(self, question: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what ``make`` makes of this analyst's answers, and of nothing else that ``question`` does not say.

        It may be what was made of them before.
        """
        ...

    def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
        """Raise `DefinitionError` if a step could not run over ``frames``, or gave other columns than ``stored``.

        ``frames``: for each frame that they read the columns of the collection, without time and diff.
        """
        ...


class TypeAnalyst(Analyst, Protocol):
    """An analyst that reads column lists, too."""

    def parse_ddl(self, ddl: str) -> Schema:
        """Return the schema that a column list writes.  Raises `DefinitionError` for what is none."""
        ...
