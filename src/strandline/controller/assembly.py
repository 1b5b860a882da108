"""What an environment is made of: protocols for all that touches the world, and nothing concrete.

`wiring.assemble` makes the assembly of a location; a simulation makes its own.  So everything on this floor runs over
whatever clock, stores, engine, sources and endpoints it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from strandline.compute.plan.asked import answered
from strandline.compute.plan.scalars.context import TypeAnalyst
from strandline.compute.plan.scalars.remembered import Answers
from strandline.compute.tick import SideBySide
from strandline.controller.location.tenure import Processes
from strandline.errors import Disconnected
from strandline.instance.connections import Connectors, Drivers, Equipment, Triggers, no_triggers
from strandline.instance.protocol.carrier import Carrier, Dial
from strandline.persist.client import PersistClient
from strandline.plane import Engine
from strandline.sources.question import Patience
from strandline.store.clock import Aside, Beside, Clock, Ids
from strandline.store.protocols import Blob, Consensus

T = TypeVar("T")


class ViewEngine(Engine, Protocol):
    """An engine that says which of its settings change answers, and whether it still runs."""

    def settings(self) -> dict[str, str]:
        """Return the configuration that changes answers: part of what a view means."""
        ...

    async def require_running(self) -> None:
        """Return if this can evaluate.  Raises `ConfigError` if it has ended, for as long as this process lives."""
        ...

    def require_executors(self) -> None:
        """Return if this has machines to compute on, or may still get some.  Asks no other process.

        Raises `ExecutorsGone` if it has been without them for as long as the configuration allows, or can get none any
        more: then the supervisor of this process is to start it again.
        """
        ...


async def unreachable(address: str) -> Carrier:
    """Reach no replica: what an environment does that was given no way to."""
    raise Disconnected(f"{address} cannot be reached from here")


@dataclass(frozen=True)
class Assembly:
    """Everything that touches the world, and how to close it."""

    clock: Clock
    ids: Ids
    blob: Blob
    consensus: Consensus
    engine: ViewEngine
    analyst: TypeAnalyst
    connectors: Connectors
    drivers: Drivers
    together: SideBySide
    beside: Beside
    lanes: int
    """How many stages may take long steps at a time."""
    processes: Processes
    address: Path | None
    """Where the writer publishes the address that sends notices of new versions; None: only in the writer itself."""
    opened: ExitStack
    dial: Dial = unreachable
    """How replicas are reached."""
    answers: Answers = field(default_factory=Answers)
    """What the analyst remembers; of no authority: nothing."""
    endpoints: Sequence[str] | None = None
    """The names of the drivers that there are; None: any name may be one."""
    triggers: Triggers = no_triggers
    """How what is to be called after transactions is called."""
    aside: Aside | None = None
    """Where what asks Spark to plan is called; None: where its caller is."""

    async def planning(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, which asks Spark to plan and changes nothing: see `answered`."""
        return await answered(call, self.aside)

    def equipment(self, client: PersistClient, patience: Patience) -> Equipment:
        """Return what an instance of this process is given; ``patience``: how long an upstream is waited for."""
        have = (self.engine, self.connectors, self.drivers, self.together)
        return Equipment(client, *have, patience, self.lanes, self.triggers)

    def close(self) -> None:
        """Close files, threads and the session that was built here; a caller's session is left as it is."""
        self.opened.close()
