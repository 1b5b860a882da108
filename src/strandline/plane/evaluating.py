"""New frames from frames: what a plan or plain SQL makes of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from strandline.algebra.nodes import Node
from strandline.algebra.schema import Schema
from strandline.persist.handles.contents import Rows
from strandline.plane.described import Described


class Evaluating(Protocol):
    """Evaluates plans and plain SQL; results are lazy frames."""

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """Return the updates of ``node`` (lazy), whose `Get` leaves name ``frames``; not consolidated.

        The times that ``node`` names are relative to ``origin``, and no update of ``frames`` is before ``origin``.
        Trap: a plan that names absolute times is compiled anew at every step.
        """
        ...

    async def derived(self, node: Node, drafted: Mapping[str, tuple[Schema, Rows]]) -> Rows | None:
        """Return the updates of ``node`` (lazy) over frames that are about to be staged, as they will then be read.

        ``node`` names no times.  None: it is better, or only possible, to read them once they are staged.
        """
        ...

    async def query(self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], *, time: int) -> tuple[Schema, Rows]:
        """Return plain Spark's result of ``sql`` over the multisets of ``relations``: insertions at ``time`` (lazy).

        Raises `DefinitionError` if Spark refuses the text, or no collection could have its columns.
        """
        ...

    async def answer(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], given: Sequence[pa.Scalar] = ()
    ) -> tuple[pa.Schema, Rows]:
        """Return plain Spark's answer to ``sql`` over the multisets of ``relations``: plain rows (lazy), their columns.

        These have Spark's names and order, whatever they are, and the types that Arrow has for them.  ``given``: the
        values of the question marks of ``sql``.

        Raises `DefinitionError` if Spark refuses the text, `InvalidUsage` if it has no value for one of ``given``.
        """
        ...

    async def described(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], count: int, limits: Collection[int]
    ) -> Described:
        """Return what `answer` gives for ``sql``, with ``count`` question marks, and what values these want.

        ``limits``: the numbers of question marks that say how many rows.  Raises `DefinitionError` as `answer`.
        """
        ...
