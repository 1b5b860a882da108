"""Envelopes: what turns the records of a step, as a reader returns them, into the updates that are staged.

An envelope stands between reading and staging.  It may look at what the source's shard holds before the step, and at
nothing else; so the same records over the same contents are the same updates, whichever instance makes the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strandline.frontier.antichain import Frontier
from strandline.persist.handles.contents import Rows
from strandline.persist.shard.state import ShardState
from strandline.sources.reclock import Slice


class Envelope(Protocol):
    """One way to read records as updates."""

    @property
    def by_binding(self) -> bool:
        """Whether a step takes one binding, because its updates depend on what is held just before its time."""
        ...

    @property
    def settled(self) -> bool:
        """Whether no two updates cancel, and all are normal as the reader gave them (`StageRequest.normalised`)."""
        ...

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """Return the updates of the records ``rows`` (lazy), which `SourceReader.read` returned for ``slices``.

        The shard is durable up to ``lower``.  ``located``: the errors among ``rows`` say where they are.
        """
        ...


class HeldState(Protocol):
    """Where the source's shard is seen: its writer's handle."""

    @property
    def state(self) -> ShardState:
        """The newest state known."""
        ...
