"""Envelopes: what turns the records of a step, as a reader returns them, into the updates that are staged.

An envelope stands between reading and staging.  It may look at what the source's shard holds before the step, and at
nothing else; so the same records over the same contents are the same updates, whichever instance makes the step.

Source: design page "sources" (ingestion step, envelopes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier, as_time
from strandline.persist.handles.plane import Engine, Half, Rows
from strandline.persist.handles.read import contents, erring
from strandline.persist.shard.state import ShardState
from strandline.sources.reclock import Slice


class Envelope(Protocol):
    """One way to read records as updates."""

    @property
    def by_binding(self) -> bool:
        """Whether a step takes one binding, because its updates depend on what is held just before its time."""
        ...

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """Return the updates of the records ``rows`` (lazy), which `SourceReader.read` returned for ``slices``.

        The shard is durable up to ``lower``.  ``located``: the errors among ``rows`` say where they are.
        """
        ...


class Append:
    """Every record is an update as it is."""

    by_binding = False

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """See `Envelope.updates`."""
        return rows


class HeldState(Protocol):
    """Where the source's shard is seen: its writer's handle."""

    @property
    def state(self) -> ShardState:
        """The newest state known."""
        ...


class Retracting:
    """Upstream takes records back: one that could not be decoded cancels with the error that it left.

    Its text is part of a located error alone, so a step without errors is left as it is.
    """

    by_binding = True

    def __init__(self, schema: Schema, engine: Engine, held: HeldState) -> None:
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
