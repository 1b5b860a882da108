"""A small environment over lists, whose sources have real readers; and an operator who does what its status advises."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from strandline.cli import app as cli
from strandline.cli.terminal.opening import Opener
from strandline.client import Environment
from strandline.client.access import Access
from strandline.controller.asking import reads
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.location.config import Config, Mode
from strandline.instance.commands import RunIngestion
from strandline.persist.client import PersistClient
from strandline.persist.handles.location import Pair, agree
from strandline.problem import Problem, Way
from strandline.sources.reader import SourceReader, Surroundings
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.wiring.loop import LoopThread
from strandline.wiring.registry import Readers, driver

NOW_MS: Final = 1_700_000_000_000
TICKS_MAX: Final = 6
"""After so many ticks a problem that was ended has left."""
Open = Callable[[Surroundings], Awaitable[SourceReader]]
_HOLE: Final = re.compile(r"\\\{(\w+)[^}]*\\\}")


class Sources(Readers):
    """`Connectors`: those that there are; a connector of ``doubles`` has a reader of its own, and asks no upstream."""

    doubles: Mapping[str, Open]
    opened: dict[str, Any]

    async def reader(self, source: RunIngestion, client: PersistClient, epoch: int) -> SourceReader:
        """See `Connectors.reader`."""
        made = self.doubles.get(source.connector)
        if made is None:
            self.opened[source.name] = await Readers.reader(self, source, client, epoch)
        else:
            self.opened[source.name] = await made(self._given(source, client, epoch))
        return self.opened[source.name]

    async def ask(self, name: str, connector: str, options: Mapping[str, str]) -> None:
        """See `Connectors.ask`."""
        if connector not in self.doubles:
            await Readers.ask(self, name, connector, options)

    async def ask_table(self, name: str, connector: str, *asked: Any) -> None:
        """See `Connectors.ask_table`."""

    async def release(self, source: RunIngestion, *asked: Any) -> str:
        """See `Connectors.release`: nothing is kept."""
        return ""


class Unchecked(Environment):
    """An environment whose views do not check themselves: Spark answers them."""

    async def _check(self) -> None:
        pass


class Site:
    """A location in memory, an environment of it, and a neighbour: table ``t`` with the view ``beside``."""

    def __init__(
        self,
        root: Path,
        decoder: Any = None,
        doubles: Mapping[str, Open] | None = None,
        upstream: Any = None,
        processes: str = "p",
    ) -> None:
        """``upstream``: what a test harms, if it is no file below ``root``.  ``processes``: what their ids begin with.

        The id of a location begins so, too.
        """
        self._processes = processes
        self.root, self.upstream = root, upstream
        self.clock = HandClock(NOW_MS)
        self._blob, self._consensus = MemoryBlob(), MemoryConsensus()
        self._decoder, self._doubles = decoder, doubles or {}
        self._opened = self._written = 0
        self.drivers: Any = partial(driver, self.clock)
        self.open()
        self.execute("CREATE TABLE t (id BIGINT)", "CREATE MATERIALIZED VIEW beside AS SELECT t.id AS id FROM t")

    def open(self) -> None:
        """Open the environment as the next process does."""
        self._opened += 1
        engine = ListEngine(self._blob)
        connectors = Sources(self.clock, engine, self._decoder, self._decoder)
        self.readers: dict[str, Any] = {}
        object.__setattr__(connectors, "doubles", self._doubles)
        object.__setattr__(connectors, "opened", self.readers)
        ids = CountingIds(f"{self._processes}{self._opened}")
        assembly: Any = list_assembly(
            self.clock,
            ids,
            self._blob,
            self._consensus,
            engine=engine,
            connectors=connectors,
            drivers=self.drivers,
        )
        self._loop = LoopThread()
        pair = Pair(self._blob, self._consensus, "memory", "memory")
        self._loop.run(agree(pair, self.clock, ids, writes=True))
        self.core = self._loop.run(Core.open(assembly, Config(take_over=True), Mode.FULL))
        self.env = Unchecked(Access(self.core, assembly, self._loop))

    def reopen(self) -> None:
        """End the environment, and open it as the next process does."""
        self.env.close()
        self.open()

    def saved(self) -> Any:
        """Return a copy of the location's stores."""
        return deepcopy((self._blob, self._consensus)), self._written

    def restore(self, saved: Any) -> None:
        """Have the location be what was saved, and open it."""
        (self._blob, self._consensus), self._written = saved
        self.open()

    def execute(self, *statements: str) -> None:
        """Execute statements."""
        for each in statements:
            self.env.execute(each)

    def tick(self) -> dict[str, Any]:
        """Let time pass, and tick; the neighbour goes on.  Return the status."""
        self._written += 1
        self.env.insert("t", [{"id": self._written}])
        self.clock.now += 1_000
        self.env.tick(wait=True)
        status = self.env.status()
        assert not {"t", "beside"} & {*status["problems"], *status["waiting"]}, status["problems"]
        assert len(self.rows("beside")) == self._written, "the neighbour goes on"
        return status

    def clean(self) -> None:
        """Tick until nothing stands still."""
        for _ in range(TICKS_MAX):
            status = self.tick()
            if not status["problems"] and not status["waiting"]:
                return
        raise AssertionError(status["problems"] | status["waiting"])

    def rows(self, name: str, time: int | None = None) -> list[Any]:
        """Return the rows of a collection at ``time``, or at the latest one."""

        async def read() -> list[Any]:
            reader = await self.core.readers.of(name)
            at = await reads.latest(self.core, [reader]) if time is None else time
            found = await self.core.engine.multiset(await reads.snapshot(self.core, reader, at, Hold()))
            names = reader.schema.names
            return sorted(tuple(row[each] for each in names) for row in listed(found).rows)

        return self._loop.run(read())


# --- the operator ----------------------------------------------------------------------------------------------------
def pattern(template: str) -> str:
    """Return a template as a regular expression."""
    return _HOLE.sub(lambda hole: f"(?P<{hole[1]}>.+?)", re.escape(template))


def says(text: str, problem: Problem) -> bool:
    """Return whether a text of status says a problem, with all of its ways out."""
    return re.search(unnamed(pattern(problem.cause)), text) is not None and all(
        re.search(unnamed(pattern(way.what)), text) for way in problem.ways
    )


def unnamed(expression: str) -> str:
    """Return a regular expression without names: one may stand in it twice."""
    return re.sub(r"\?P<\w+>", "", expression)


def command(text: str, way: Way) -> str:
    """Return the command of a way out as a text of status has it."""
    found = re.search(
        f"{unnamed(pattern(way.what))}: (?P<command>{unnamed(pattern(way.command))})(?=; or |; [a-z{{]|$)", text
    )
    assert found is not None, (way, text)
    return found["command"]


def follow(env: Environment, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a command says, word for word."""
    if not text.startswith("strandline "):
        for each in text.split("; "):
            env.execute(each)
        return

    class Here(Opener):
        """The environment, for the command line."""

        def place(self, root: Path) -> Any:
            """Return what `changing` is given."""
            return root

        def project(self, root: Path, **_: object) -> Any:
            """Return what `changing` is given."""
            return root

        def changing(self, *_: object, **__: object) -> Any:
            """Give the environment."""
            return nullcontext(env)

        reading = changing

    monkeypatch.setattr(cli, "_opener", lambda _: Here())
    done = CliRunner().invoke(cli.app, shlex.split(text)[1:])
    assert done.exit_code == 0, (text, done.output, done.exception)
    if printed := re.search(r"nothing is changed; `(strandline .+)` dismisses them", done.output):
        follow(env, printed[1], monkeypatch)


# --- cases -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """How a problem of ``item`` is caused: ``begin`` defines the item, and ``harm`` harms what it needs.

    ``mends``: what is done outside, by what the way out says.  ``then`` asserts what holds once nothing stands still.
    """

    problem: Problem
    item: str
    begin: Callable[[Site], object]
    harm: Callable[[Site], object]
    mends: Mapping[str, Callable[[Site], object]] = field(default_factory=dict)
    then: Callable[[Site], object] = lambda _: None

    def __str__(self) -> str:
        return self.problem.name


def ways_of(cases: Sequence[Case]) -> list[Any]:
    """Return each case with each of its ways out, as the parameters of a test."""
    return [
        pytest.param(case, way, id=f"{case}-{number}")
        for case in cases
        for number, way in enumerate(case.problem.ways)
        if not way.foreign or way.what in case.mends
    ]


def take(case: Case, way: Way, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cause a problem, and take a way out of it as its status says, until nothing stands still."""
    case.begin(site)
    site.clean()
    case.harm(site)
    text = ""
    for _ in range(TICKS_MAX):
        said = site.tick()
        text = said["problems"].get(case.item) or "; ".join(_notices(said, case.item))
        if says(text, case.problem):
            break
    assert says(text, case.problem), text
    case.mends.get(way.what, lambda _: None)(site)
    if way.command and not way.foreign:
        follow(site.env, command(text, way), monkeypatch)
    site.clean()
    case.then(site)


def _notices(status: Mapping[str, Any], item: str) -> list[str]:
    kinds = ("collections", "sources", "materializations")
    return next((status[kind][item]["notices"] for kind in kinds if item in status[kind]), [])
