"""A location that another process holds is refused before Spark is started."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

import strandline
from strandline.cli.terminal.standing import written_by
from strandline.controller.location.catalog import KEY, CatalogStore, Holder
from strandline.controller.location.config import Config
from strandline.controller.location.tenure import Opening, SystemProcesses
from strandline.errors import ConfigError, Held, NothingStored
from strandline.persist.handles.register import Register
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.wiring import on_spark


class Parent(SystemProcesses):
    """This host, as the process that began this one has it."""

    def own(self) -> int:
        """Its id."""
        return os.getppid()


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
    (location / "blob").mkdir(parents=True)
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


def test_while_spark_starts_others_learn_which_process_opens_the_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: for a minute `status` says that no process writes, and its reader starts a second one."""
    fresh, used = tmp_path / "fresh", tmp_path / "used"
    hold(used)
    seen: list[str] = []

    def look(_: object) -> NoReturn:
        with pytest.raises(NothingStored) as nothing:
            strandline.open(str(fresh), read_only=True)
        seen.append(str(nothing.value))
        with strandline.open(str(used), read_only=True) as env:
            seen.append(written_by(env.status()))
        raise SparkStarted

    monkeypatch.setattr(on_spark, "build", look)
    process = f"deployment 'default', process {os.getpid()} on host '{SystemProcesses().host()}'"
    with pytest.raises(SparkStarted):
        strandline.open(str(fresh))
    with pytest.raises(SparkStarted):
        strandline.open(str(used), config={"take_over": True})
    starts, not_begun = f"{process} starts, and makes one", "open it for writing to make one"
    assert [each.partition("yet; ")[2] for each in seen[::2]] == [starts, not_begun], "the first has ended before"
    assert not seen[1].endswith("starts")
    assert seen[3].endswith(f"process {os.getppid()} on host '{SystemProcesses().host()}'; {process} starts")


def test_a_location_that_another_process_opens_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: two processes start Spark at the same time, and the one that loses says so after a minute."""
    monkeypatch.setattr(on_spark, "build", no_spark)
    (tmp_path / "data").mkdir()
    with closing(SQLiteConsensus(tmp_path / "data" / "consensus.db")) as consensus:
        parent = Opening(SystemClock(), SystemIds(), consensus, Parent())
        asyncio.run(parent.announce(Config()))
    with pytest.raises(Held, match=f"is being opened by deployment 'default', process {os.getppid()} "):
        strandline.open(str(tmp_path / "data"))
