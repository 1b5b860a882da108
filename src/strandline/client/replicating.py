"""A replica of an instance, for plain calls: it listens, and runs what a controller commands."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from strandline.client.preparing import MERGE_EVERY_S
from strandline.controller.location.config import Config, Mode, config_from
from strandline.errors import FencedError, StrandlineError
from strandline.instance.equipment import Equipment
from strandline.instance.replica.replica import Replica
from strandline.persist.client import PersistClient
from strandline.persist.handles.location import read_mark
from strandline.sources.question import Patience
from strandline.wiring.assemble import SparkAssembly, assemble
from strandline.wiring.loop import LoopThread
from strandline.wiring.replicas import listener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ListeningReplica:
    """A replica that listens; made by `replicate`.  Close it: what it ran goes on elsewhere, or when it begins anew."""

    def __init__(self, assembly: SparkAssembly, config: Config, address: str, loop: LoopThread) -> None:
        """Raises `ConfigError` if the address cannot be had, or listening there is not safe."""
        self._assembly = assembly
        self._loop = loop
        have = assembly
        self._client = PersistClient(have.clock, have.ids, have.blob, have.consensus, have.engine, merges_apart=True)
        equipment = Equipment(
            self._client,
            have.engine,
            have.connectors,
            have.drivers,
            have.together,
            Patience(have.beside, config.tick_ms / 1000),
            have.lanes,
        )
        mark = loop.run(read_mark(have.blob, have.clock))
        self._replica = Replica(equipment, "" if mark is None else mark.id, have.ids.fresh("replica"))
        home = None if have.address is None else Path(have.address).parent
        self._listener = listener(address, self._replica.serve, config, home)
        loop.run(self._listener.start())
        loop.repeat(have.clock, MERGE_EVERY_S, self._merge)

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

    async def _merge(self) -> None:
        with suppress(StrandlineError, FencedError):
            await self._client.merge()


def replicate(
    location: str,
    listen: str,
    *,
    spark: SparkSession | None = None,
    consensus: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> ListeningReplica:
    """Begin a replica of an instance of the environment at ``location``, which listens at ``listen`` (``host:port``).

    Port 0 takes a free one.  Raises `ConfigError` if nothing was stored there yet, or as `ListeningReplica`.
    """
    settings = config_from(config)
    # Not FULL: it writes what it is commanded, and only a controller makes a location.
    assembly = assemble(location, spark=spark, consensus=consensus, config=settings, mode=Mode.READ)
    loop = LoopThread()
    try:
        return ListeningReplica(assembly, settings, listen, loop)
    except BaseException:
        loop.stop()
        assembly.close()
        raise
