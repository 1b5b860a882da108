"""What an ingestion did and how it stands, as values.

Counts are of one incarnation.  *Reread* records are those that may have been read before: bounded input reliance says
that these are few, and none of them durable, and this is where that is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.algebra.schema import Column
from strandline.frontier import MINIMUM, Frontier, Offsets
from strandline.sources.reclock import NOTHING_READ


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """One output of a source.

    ``read_records``: rows that were staged, of both halves.  ``reread_records``: those of them at times whose reading
    may have begun before (bound before this incarnation opened, or in a step of its own that came to nothing).
    ``error_records``: rows of the err half that were made durable.  ``snapshotting``: its first step, from a snapshot
    of upstream, is not durable yet.  ``upper``: what is durable, as last seen.  ``stalled``: why the last step came to
    nothing, else empty.  ``added``: the columns that it is to get before it goes on.
    """

    read_records: int = 0
    reread_records: int = 0
    durable_records: int = 0
    error_records: int = 0
    steps: int = 0
    snapshotting: bool = False
    upper: Frontier = MINIMUM
    stalled: str = ""
    added: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """A source: its outputs by table, what is bound, and what upstream may forget.

    ``stalled``: why the last tick or step came to nothing, or upstream could not be told what it may forget.
    ``available``: how far upstream could be read when it was last asked, which is bound.  ``added``: the columns that
    outputs are to get before the source goes on, by table.
    """

    outputs: Mapping[str, OutputStatus] = field(default_factory=dict)
    bound: Frontier = MINIMUM
    resume: Offsets = NOTHING_READ
    stalled: str = ""
    notices: tuple[str, ...] = ()
    available: Offsets = NOTHING_READ
    added: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)

    @property
    def behind(self) -> int:
        """How many of upstream's offsets are bound and not durable in all outputs: its messages, where it counts them.

        >>> Status(resume=Offsets({"0": 3}), available=Offsets({"0": 5, "1": 2})).behind
        4
        """
        return sum(max(0, end - self.resume[partition]) for partition, end in self.available.entries)

    @property
    def read_records(self) -> int:
        """Of all outputs."""
        return sum(each.read_records for each in self.outputs.values())

    @property
    def reread_records(self) -> int:
        """Of all outputs."""
        return sum(each.reread_records for each in self.outputs.values())

    @property
    def durable_records(self) -> int:
        """Of all outputs."""
        return sum(each.durable_records for each in self.outputs.values())

    @property
    def error_records(self) -> int:
        """Of all outputs."""
        return sum(each.error_records for each in self.outputs.values())

    @property
    def steps(self) -> int:
        """Of all outputs."""
        return sum(each.steps for each in self.outputs.values())
