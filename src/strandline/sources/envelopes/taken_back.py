"""The envelope of records that upstream takes back: one that could not be decoded takes its error with it."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier, as_time
from strandline.persist.handles.contents import Half, Rows
from strandline.persist.handles.read import contents, erring
from strandline.plane.enveloping import Enveloping
from strandline.sources.envelopes.envelope import HeldState
from strandline.sources.reclock import Slice


class Retracting:
    """Records come and go; an undecodable one that goes cancels with the error that it left.  See `Envelope`.

    Its text is part of a located error alone, so a step without errors is left as it is.
    """

    by_binding = True
    settled = False  # an upstream that rewrites a file takes back most rows of it to say them again

    def __init__(self, schema: Schema, engine: Enveloping, held: HeldState) -> None:
        self._schema = schema
        self._engine = engine
        self._held = held

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """See `Envelope.updates`."""
        if not located:
            return rows
        (only,) = slices
        held = contents(self._held.state, self._schema, 0, as_time(lower), advance=only.time, half=Half.ERR)
        return await self._engine.cancel(rows, await self._engine.read(erring(held)), time=only.time)
