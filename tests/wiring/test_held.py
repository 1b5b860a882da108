"""A location that another process holds is refused before Spark is started."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

import strandline
from strandline.controller.location.catalog import KEY, CatalogStore, Holder
from strandline.controller.location.tenure import SystemProcesses
from strandline.errors import ConfigError
from strandline.persist.handles.register import Register
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.system import SystemClock, SystemIds
from strandline.wiring import on_spark


class SparkStarted(Exception):
    """Spark would be started."""


def no_spark(_: object) -> NoReturn:
    """Start no Spark."""
    raise SparkStarted


def hold(location: Path) -> None:
    """Have the process that began this one hold a location."""
    system, pid = SystemProcesses(), os.getppid()
    started = system.started_ms(pid, system.boot())
    assert started is not None, "it lives"
    holder = Holder("default", system.host(), pid, started, 0, True, system.boot())
    location.mkdir()
    with closing(SQLiteConsensus(location / "consensus.db")) as consensus:
        store = CatalogStore(Register(KEY, SystemClock(), SystemIds(), consensus))
        asyncio.run(store.succeed(lambda _: holder))


def test_a_second_writer_is_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: who starts `strandline run` twice by mistake waits for a minute, on a busy machine, to learn it."""
    monkeypatch.setattr(on_spark, "build", no_spark)
    location = tmp_path / "data"
    hold(location)
    with pytest.raises(ConfigError, match=f"written by deployment 'default', process {os.getppid()} .* which is alive"):
        strandline.open(str(location))
    with pytest.raises(SparkStarted):
        strandline.open(str(location), config={"take_over": True})
    with strandline.open(str(location), read_only=True) as env, pytest.raises(SparkStarted):
        env.query("SELECT 1")
