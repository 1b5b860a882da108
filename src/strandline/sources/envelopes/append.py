"""The envelope of plain records: each is an update as it is."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.frontier.antichain import Frontier
from strandline.persist.handles.contents import Rows
from strandline.sources.reclock import Slice


class Append:
    """Every record is an update.  See `Envelope`."""

    by_binding = False
    settled = True

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """See `Envelope.updates`."""
        return rows
