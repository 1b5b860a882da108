"""Feed: a collection as its materialization sees it, a stream of net changes over windows of time."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier


class Feed(Protocol):
    """One bound collection.

    Definite: the same window always gives the same changes, whenever and by whomever it is asked for.
    """

    name: str
    schema: Schema

    async def upper(self) -> Frontier:
        """Return the collection's upper: every window that ends at or before it can be read."""
        ...

    async def changes(self, lower: int, upper: int) -> pa.Table:
        """Return the net changes over ``[lower, upper)``: the schema's columns, in order, plus ``__diff`` bigint.

        Consolidated: a row is there at most once and its diff is not 0; times are summed out.  ``lower == 0``: all
        contents before ``upper``.

        Raises:
            AsOfError: the collection no longer tells times before ``lower`` from later ones (it was not held).
            CollectionError: its error half is not empty in the window.
        """
        ...

    async def hold(self, frontier: Frontier) -> None:
        """Move this task's critical since hold to ``frontier``, which is never past what is durably committed."""
        ...
