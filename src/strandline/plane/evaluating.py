"""New frames from frames: what a plan or plain SQL makes of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from strandline.algebra.nodes import Node
from strandline.algebra.schema import Schema
from strandline.persist.handles.contents import Rows


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

        Raises `DefinitionError` if Spark refuses the text.
        """
        ...
