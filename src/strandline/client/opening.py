"""`open`, from a location to an environment; and a replica for plain calls, which runs what a controller commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from strandline.client.environment import Environment
from strandline.client.preparing import MERGE_EVERY_S, NextVersion, environment
from strandline.controller.core import Core
from strandline.controller.defining.project.settings import Project
from strandline.controller.defining.relocating import seen_by
from strandline.controller.language import arguments
from strandline.controller.location.config import Config, Mode, config_from
from strandline.instance.replica import Replica
from strandline.persist.client import PersistClient
from strandline.persist.handles.location import read_mark
from strandline.sources.question import Patience
from strandline.wiring.assemble import SparkAssembly, assemble
from strandline.wiring.loop import LoopThread
from strandline.wiring.replicas import listener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


T = TypeVar("T")


def open(  # noqa: A001  # the public name is `strandline.open`
    location: str,
    *,
    spark: SparkSession | None = None,
    consensus: str | None = None,
    read_only: bool = False,
    config: Mapping[str, Any] | None = None,
    mode: str | None = None,
    project: Project | None = None,
) -> Environment:
    """Open the environment at ``location`` and return it; a context manager.

    Args:
        location: where collections are kept: ``file:///path``, ``memory://`` or ``s3://bucket/prefix``.
        spark: a session to work beside (its conf is not changed); None builds one from ``config["spark"]``.
        consensus: None (SQLite inside a file location, a bucket's own conditional puts), ``sqlite:///path``,
            ``postgresql://…`` or ``object-store``; or a reference (``env:NAME``).
        read_only: take nothing over, write no data: ``mode="read"``.
        config: see `strandline.controller.location.config.Config`.
        mode: ``full`` (the default), ``read`` (leases and notices, no data) or ``independent`` (no write, no connection
            and no hold: no other process sees it); see `strandline.controller.location.config.Mode`.
        project: whose location it is (`strandline.controller.defining.project.files.load`): if its directory was
            moved, so were the paths of its sources and endpoints.

    Raises:
        ConfigError: the location is not writable, is held by another environment (named), or Java is missing or too
            old.

    Where it is not opened for writing and no ``spark`` is given, Spark is started by the first call that needs it, and
    it is that call which raises what is said of Java.
    """
    wanted = arguments.opening(mode, read_only=read_only)
    writes = wanted is Mode.FULL
    assembly, settings = _assembled(
        location, spark, consensus, config, wanted, claims=writes, waits=not writes and spark is None
    )
    seen = seen_by(project)
    return _opened(
        assembly, lambda loop: environment(loop.run(Core.open(assembly, settings, wanted, seen=seen)), assembly, loop)
    )


def prepare(
    location: str,
    project: Project,
    *,
    spark: SparkSession | None = None,
    consensus: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> NextVersion:
    """Prepare the views that ``project`` has otherwise than the environment at ``location``; see `NextVersion`.

    Raises:
        ConfigError: nothing is stored there yet; or as `open`.
        DefinitionError: a definition is wrong; or differs from the present one and is not a view's.
    """
    assembly, settings = _assembled(location, spark, consensus, config, Mode.FULL)

    def version(loop: LoopThread) -> NextVersion:
        core = loop.run(Core.open(assembly, settings, Mode.READ, seen=seen_by(project)))
        loop.run(core.look())
        return NextVersion(core, assembly, loop, project)

    return _opened(assembly, version)


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
    # Not FULL: it writes what it is commanded, and only a controller makes a location.
    assembly, settings = _assembled(location, spark, consensus, config, Mode.READ)
    return _opened(assembly, lambda loop: ListeningReplica(assembly, settings, listen, loop))


def _opened(assembly: SparkAssembly, make: Callable[[LoopThread], T]) -> T:
    """Return what ``make`` opens in a thread of its own; where that fails, close all that was opened for it."""
    loop = LoopThread()
    try:
        return make(loop)
    except BaseException:
        loop.stop()
        assembly.close()
        raise


def _assembled(
    location: str,
    spark: SparkSession | None,
    consensus: str | None,
    config: Mapping[str, Any] | None,
    mode: Mode,
    *,
    claims: bool = False,
    waits: bool = False,
) -> tuple[SparkAssembly, Config]:
    arguments.text(location, "location")
    if consensus is not None:
        arguments.text(consensus, "consensus")
    if spark is not None and not hasattr(spark, "newSession"):
        arguments.refuse("spark", "a SparkSession", spark)
    if config is not None:
        arguments.instance(config, Mapping, "config", "a mapping of settings")
    settings = config_from(config)
    assembly = assemble(
        location, spark=spark, consensus=consensus, config=settings, mode=mode, claims=claims, waits=waits
    )
    return assembly, settings
