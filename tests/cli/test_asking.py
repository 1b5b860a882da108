"""`strandline status` shows what begins, what follows, and which sources there are.  Over lists."""

from __future__ import annotations

import io
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from strandline.cli import asking
from strandline.cli.terminal.output import Output
from strandline.client import Environment
from strandline.client.access import Access
from strandline.controller.core import Core
from strandline.controller.location.config import Config, Mode
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.kinds import Kinds
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_source import Upstream
from strandline.wiring.loop import LoopThread
from strandline.wiring.registry import Readers, driver

DEFINITIONS = (
    "CREATE CONNECTION here TO lists (server = one)",
    "CREATE SOURCE bank FROM tables (connection = here)",
    "CREATE TABLE accounts (partition STRING, offset BIGINT, value BIGINT) FROM SOURCE bank (REFERENCE 'a')",
)


class Opened:
    """Opens one environment, again and again."""

    def __init__(self, env: Environment) -> None:
        self.env = env

    def place(self, root: Path) -> Any:
        """There is no project, but for the place of one."""
        return SimpleNamespace(root=root)

    def reading(self, *_: object, **__: object) -> Any:
        """Return it, and leave it open."""
        return nullcontext(self.env)

    changing = reading


def shown(env: Environment) -> str:
    """Return what a person sees."""
    written = io.StringIO()
    asking.status(cast("Any", Opened(env)), Path(), Output(json=False, console=Console(file=written, width=300)))
    return written.getvalue()


def test_status_shows_phases_and_the_source_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an operator cannot see that a first load goes on, or why a table of a database stands still."""
    upstream = Upstream(down=True)
    Kinds({"one": upstream}).install(monkeypatch.setitem)
    clock, loop = HandClock(1_000), LoopThread()
    assembly = cast("Any", list_assembly(clock, CountingIds("p"), MemoryBlob(), MemoryConsensus()))
    object.__setattr__(assembly, "connectors", Readers(clock, assembly.engine, cast("Any", None), cast("Any", None)))
    env = Environment(Access(loop.run(Core.open(assembly, Config(), Mode.FULL)), assembly, loop))
    for text in DEFINITIONS:
        env.execute(text)
    env.tick()
    begun = shown(env)
    upstream.down = False
    upstream.produce("a", 1)
    env.tick()
    followed = shown(env)
    env.close()
    assert "source bank: tables by here, feeds accounts\n" in begun
    assert "problem: bank: the upstream does not answer" in begun
    assert "snapshotting" in begun
    assert "accounts: snapshotting, 0 rows" in begun
    assert "following  0.0 s" in followed
    assert "source bank: tables by here, feeds accounts\n" in followed


def test_what_a_dropped_view_leaves_is_said_with_what_removes_it(tmp_path: Path) -> None:
    """Damage: a table that no one keeps up to date any longer stays at the endpoint, and the operator does not know."""
    clock, loop = HandClock(1_000), LoopThread()
    drivers = partial(driver, clock)
    assembly = list_assembly(clock, CountingIds("p"), MemoryBlob(), MemoryConsensus(), drivers=drivers)
    env = Environment(Access(loop.run(Core.open(assembly, Config(), Mode.FULL)), assembly, loop))
    for name in ("a", "b"):
        env.execute(f"CREATE TABLE {name} (k INT)")
    env.execute(f"CREATE MATERIALIZATION m INTO sqlite OPTIONS (path '{tmp_path / 'm.db'}') AS a KEY (k), b KEY (k)")
    file = tmp_path / "change.sql"
    file.write_text("ALTER MATERIALIZATION M DROP VIEW b")
    printed, noted = io.StringIO(), io.StringIO()
    output = Output(False, Console(file=printed, width=300), Console(file=noted, width=300))
    asking.script(cast("Any", Opened(env)), tmp_path, file, output)
    told = shown(env)
    env.close()
    text = "the rows of 'b' stay in 'b' of sqlite; ALTER MATERIALIZATION m DROP VIEW b REMOVE ROWS takes them out\n"
    assert printed.getvalue() == "ALTER MATERIALIZATION VIEWS: done\n"
    assert noted.getvalue() == text
    assert f"m: {text}" in told
