"""`open`: from a location to an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from strandline.client.access import Access
from strandline.client.environment import Environment
from strandline.controller.core import Core
from strandline.controller.language import arguments
from strandline.controller.location.config import config_from
from strandline.persist.shard.holds import BEAT_MS
from strandline.wiring.assemble import assemble
from strandline.wiring.loop import LoopThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MERGE_EVERY_S: Final = 5.0
"""How often large merges that are due are carried out, beside whatever else goes on."""
WATCH_EVERY_S: Final = 5.0
"""How often it is looked whether a tick runs long."""


def open(  # noqa: A001  # the public name is `strandline.open`
    location: str,
    *,
    spark: SparkSession | None = None,
    consensus: str | None = None,
    read_only: bool = False,
    config: Mapping[str, Any] | None = None,
    mode: str | None = None,
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

    Raises:
        ConfigError: the location is not writable, is held by another environment (named), or Java is missing or too
            old.
    """
    arguments.text(location, "location")
    if consensus is not None:
        arguments.text(consensus, "consensus")
    if spark is not None and not hasattr(spark, "newSession"):
        arguments.refuse("spark", "a SparkSession", spark)
    if config is not None:
        arguments.instance(config, Mapping, "config", "a mapping of settings")
    settings, wanted = config_from(config), arguments.opening(mode, read_only=read_only)
    assembly = assemble(location, spark=spark, consensus=consensus, config=settings, mode=wanted)
    loop = LoopThread()
    try:
        core = loop.run(Core.open(assembly, settings, wanted))
    except BaseException:
        loop.stop()
        assembly.close()
        raise
    loop.repeat(assembly.clock, BEAT_MS / 1000, core.readers.beat)
    loop.repeat(assembly.clock, MERGE_EVERY_S, core.merge)
    loop.repeat(assembly.clock, WATCH_EVERY_S, core.watch)
    return Environment(Access(core, assembly, loop))
