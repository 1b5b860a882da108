"""A replica of an instance, for plain calls: it listens, and runs what a controller commands."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

from strandline.client.preparing import MERGE_EVERY_S
from strandline.controller.location.config import Config
from strandline.instance.replica.replica import Replica
from strandline.persist.client import PersistClient
from strandline.persist.handles.location import read_mark
from strandline.sources.question import Patience
from strandline.wiring.assemble import SparkAssembly
from strandline.wiring.loop import LoopThread
from strandline.wiring.replicas import listener


class ListeningReplica:
    """A replica that listens, made by `opening.replicate`.  Close it: its work goes on elsewhere, or in the next."""

    def __init__(self, assembly: SparkAssembly, config: Config, address: str, loop: LoopThread) -> None:
        """Raises `ConfigError` if the address cannot be had, or listening there is not safe."""
        self._assembly = assembly
        self._loop = loop
        have = assembly
        self._client = PersistClient(have.clock, have.ids, have.blob, have.consensus, have.engine, merges_apart=True)
        equipment = have.equipment(self._client, Patience(have.beside, config.tick_ms / 1000))
        mark = loop.run(read_mark(have.blob, have.clock))
        self._replica = Replica(equipment, "" if mark is None else mark.id, have.ids.fresh("replica"))
        home = None if have.address is None else have.address.parent
        self._listener = listener(address, self._replica.serve, config, home)
        loop.run(self._listener.start())
        loop.repeat(have.clock, MERGE_EVERY_S, self._upkeep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listener.address

    def close(self) -> None:
        """Stop listening, and end what runs here.  Raises what an upstream or an endpoint raises."""
        try:
            self._loop.run(self._listener.close())
            self._loop.run(self._replica.close())
            self._loop.quiet()
        finally:
            self._loop.stop()
            self._assembly.close()

    def require_running(self) -> None:
        """Return if Spark runs.  Raises `ConfigError` if it has ended: then nothing here goes on, in this process.

        Raises `ExecutorsGone`, which is one, as `Environment.tick` does.
        """
        self._assembly.engine.require_executors()
        self._loop.run(self._assembly.engine.require_running())

    async def _upkeep(self) -> None:
        """Carry out the large merges that are due, and what could not be done after a commit; what fails is due again.

        A law that is broken shows where the shard is read; it ends no upkeep of the others.
        """
        for due in (self._client.merge, self._client.mend):
            with suppress(Exception):
                await due()
