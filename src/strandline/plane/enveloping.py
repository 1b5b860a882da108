"""Updates from records: what the envelopes of sources ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strandline.algebra.schema import Schema
from strandline.persist.handles.contents import Rows
from strandline.plane.lookups import LookUps


class Enveloping(LookUps, Protocol):
    """Makes updates of a source's records, by what the source's own collection held before them."""

    async def keyed(
        self, records: Rows, held: Rows | None, errors: Rows | None, schema: Schema, key: Sequence[str]
    ) -> Rows:
        """Return the updates that keyed ``records`` make (lazy; equal ones of both signs may remain).

        They are exact at every time: of each key and time the last record counts (`algebra.keyed`), what was there
        before it goes, and what it says comes.  ``held``: the updates before all records, of these keys and perhaps
        others; ``errors``: those of the err half.  There is ``__error`` if there may be errors.
        """
        ...

    async def cancel(self, rows: Rows, held: Rows, *, time: int) -> Rows:
        """Return ``rows``, all at ``time``, less the errors that cancel one another or one in ``held`` (lazy).

        An error cancels the error of the same record taken back: `algebra.undecoded` says which do.
        """
        ...
