"""`strandline driver check`: any author's driver, held against the contract; and the contract, against defects.

Every scenario of the driver contract runs on the driver unchanged, where it must pass, and with each defect planted,
where it must fail.  A defect that passes its scenario is a fault of the suite, or of an endpoint that the suite cannot
see through.

The defects are those that drivers have had, put into any driver from outside: they change the messages between a
runtime and its driver, so they need to know nothing of either.  The endpoint under check is read back by the driver
itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from strandline.errors import FencedError, InvalidUsage, StrandlineError
from strandline.materialize.driver import Answers, Applied, Contents, Driver, DriverSpec, Session, Validated
from strandline.materialize.protocol.messages import (
    DELETE,
    Acknowledge,
    Acknowledged,
    Flush,
    Flushed,
    Load,
    Loaded,
    Open,
    Opened,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, Binding, Checkpoint, MaterializationSpec, canonical
from strandline.store.clock import Running
from strandline.testing.contracts.drivers import driver_contract
from strandline.testing.contracts.drivers.world import TWO, World
from strandline.testing.doubles import HandClock
from strandline.wiring.loop import LoopThread, RunningTask


class Twisted:
    """A session whose messages a defect changes.  This one changes none."""

    def __init__(self, inner: Session, again: Callable[[], Any], memory: set[str]) -> None:
        self._inner = inner
        self._again = again
        self._memory = memory
        """What lasts as long as the endpoint."""

    async def send(self, message: Request) -> None:
        """See `Session.send`."""
        await self._inner.send(message)

    async def receive(self) -> Response:
        """See `Session.receive`."""
        return await self._inner.receive()

    async def close(self) -> None:
        """See `Session.close`."""
        await self._inner.close()


class _Answering(Twisted):
    """One that gives answers of its own, too."""

    def __init__(self, inner: Session, again: Callable[[], Any], memory: set[str]) -> None:
        super().__init__(inner, again, memory)
        self.answers = Answers()
        self._passing: Running | None = None

    async def send(self, message: Request) -> None:
        if self._passing is None:
            self._passing = RunningTask(HandClock(), self._pass_on)
        await self.said(message)

    async def said(self, message: Request) -> None:
        """Do what a message says."""
        await self._inner.send(message)

    def passed_on(self, message: Response) -> bool:
        """Tell whether an answer of the driver reaches the runtime."""
        return True

    async def receive(self) -> Response:
        return await self.answers.take()

    async def close(self) -> None:
        if self._passing is not None:
            await self._passing.cancel()
        await self._inner.close()

    async def _pass_on(self) -> None:
        try:
            while True:
                message = await self._inner.receive()
                if self.passed_on(message):
                    self.answers.put(message)
        except Exception as error:  # noqa: BLE001 - `receive` raises it
            self.answers.fail(error)


class _Dropped(Twisted):
    async def send(self, message: Request) -> None:
        if isinstance(message, Store):
            message = replace(message, rows=message.rows.slice(1))
            if not message.rows.num_rows:
                return
        await self._inner.send(message)


class _Undeleted(Twisted):
    async def send(self, message: Request) -> None:
        if isinstance(message, Store):
            message = replace(message, rows=message.rows.filter(pc.invert(message.rows[DELETE])))
            if not message.rows.num_rows:
                return
        await self._inner.send(message)


class _Buried(Twisted):
    async def send(self, message: Request) -> None:
        if isinstance(message, Store):
            rows = message.rows.to_pylist()
            keys = [canonical([message.binding, *(v for n, v in row.items() if n in ("k", "f"))]) for row in rows]
            left = [key not in self._memory for key in keys]
            self._memory.update(key for key, row in zip(keys, rows, strict=True) if row[DELETE])
            message = replace(message, rows=message.rows.filter(pa.array(left, pa.bool_())))
            if not message.rows.num_rows:
                return
        await self._inner.send(message)


class _Forgetful(Twisted):
    async def receive(self) -> Response:
        message = await self._inner.receive()
        return replace(message, checkpoint=NOTHING) if isinstance(message, Opened) else message


class _Unfenced(Twisted):
    """Fenced off, it opens another session, and commits there what was refused."""

    def __init__(self, inner: Session, again: Callable[[], Any], memory: set[str]) -> None:
        super().__init__(inner, again, memory)
        self._open: Open | None = None
        self._stores: list[Store] = []

    async def send(self, message: Request) -> None:
        if isinstance(message, Open):
            self._open = message
        if isinstance(message, Store):
            self._stores.append(message)
        try:
            await self._inner.send(message)
        except FencedError:
            if not isinstance(message, StartCommit) or self._open is None:
                raise
            await self._commit(self._open, message)
        if isinstance(message, StartCommit):
            self._stores.clear()

    async def _commit(self, opening: Open, message: StartCommit) -> None:
        session = await self._again()
        for each in (opening, Acknowledge(), Flush(), *self._stores, message):
            await session.send(each)
            if isinstance(each, Flush):
                while not isinstance(await session.receive(), Acknowledged):
                    pass
        await session.close()


class _Early(_Answering):
    """Says that it has committed, and does so when it hears of the next transaction."""

    def __init__(self, inner: Session, again: Callable[[], Any], memory: set[str]) -> None:
        super().__init__(inner, again, memory)
        self._late: StartCommit | None = None
        self._swallowed: list[type[Any]] = []

    async def said(self, message: Request) -> None:
        if isinstance(message, StartCommit):
            self._late = message
            self.answers.put(StartedCommit())
            self.answers.put(Acknowledged())
            return
        if self._late is not None:
            if isinstance(message, Acknowledge):
                return
            late, self._late = self._late, None
            self._swallowed += [StartedCommit, Acknowledged]
            await self._inner.send(late)
            await self._inner.send(Acknowledge())
        await self._inner.send(message)

    def passed_on(self, message: Response) -> bool:
        if type(message) in self._swallowed:
            self._swallowed.remove(type(message))
            return False
        return True


class _Unanswered(Twisted):
    async def receive(self) -> Response:
        while isinstance(message := await self._inner.receive(), Loaded):
            pass
        return message


class _Unmoved(_Answering):
    """Leaves out what has no rows."""

    def __init__(self, inner: Session, again: Callable[[], Any], memory: set[str]) -> None:
        super().__init__(inner, again, memory)
        self._stored = False
        self._skipped = False

    async def said(self, message: Request) -> None:
        self._stored = self._stored or isinstance(message, Store)
        if isinstance(message, StartCommit) and not self._stored:
            self._skipped = True  # the inner session stays where it was asked to flush
            for answer in (StartedCommit(), Acknowledged()):
                self.answers.put(answer)
            return
        if self._skipped and isinstance(message, Load | Flush | Acknowledge):
            if isinstance(message, Flush):
                self.answers.put(Flushed())
            return
        self._skipped = False
        self._stored = self._stored and not isinstance(message, StartCommit)
        await self._inner.send(message)


class _Talkative(Twisted):
    def __init__(self, inner: Session, again: Callable[[], Any], memory: set[str]) -> None:
        super().__init__(inner, again, memory)
        self._more: list[Response] = []

    async def receive(self) -> Response:
        if self._more:
            return self._more.pop()
        message = await self._inner.receive()
        if isinstance(message, StartedCommit):
            self._more.append(message)
        return message


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect, and which endpoints can have it: all, those that keep a checkpoint, or those that do not."""

    mistake: str
    scenario: str
    session: type[Twisted] = Twisted
    spec: Callable[[MaterializationSpec], MaterializationSpec] = lambda spec: spec
    previews: bool = True
    keeps: bool | None = None

    def __call__(self, memory: set[str]) -> Callable[[Driver], Driver]:
        """Return what puts it into a driver; ``memory``: what lasts as long as the endpoint."""
        return lambda driver: _Defective(driver, self, memory)


class _Defective:
    def __init__(self, inner: Driver, defect: Defect, memory: set[str]) -> None:
        self._inner = inner
        self._defect = defect
        self._memory = memory

    async def spec(self) -> DriverSpec:
        return await self._inner.spec()

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        return await self._inner.validate(spec)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        return await self._inner.apply(self._defect.spec(spec), state)

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        said = await self._inner.preview(spec)
        if not self._defect.previews:
            await self._inner.apply(spec, {})
        return said

    async def open(self) -> Session:
        twisted = self._defect.session(await self._inner.open(), self._inner.open, self._memory)
        return _Respecified(twisted, self._defect.spec)

    async def contents(self, task: str, binding: Binding) -> Contents:
        return await self._inner.contents(task, binding)


class _Respecified:
    def __init__(self, inner: Session, spec: Callable[[MaterializationSpec], MaterializationSpec]) -> None:
        self._inner = inner
        self._spec = spec

    async def send(self, message: Request) -> None:
        await self._inner.send(
            replace(message, spec=self._spec(message.spec)) if isinstance(message, Open) else message
        )

    async def receive(self) -> Response:
        return await self._inner.receive()

    async def close(self) -> None:
        await self._inner.close()


def _first_backfill(spec: MaterializationSpec) -> MaterializationSpec:
    return replace(spec, bindings=tuple(replace(each, backfill=0) for each in spec.bindings))


DEFECTS: Final = (
    Defect("a row is dropped", "follow", _Dropped),
    Defect("nothing is ever deleted", "follow", _Undeleted),
    Defect("a key that was deleted once is gone for ever", "put_back", _Buried),
    Defect("its checkpoint is not found again", "crash_everywhere", _Forgetful, keeps=True),
    Defect("a session that was fenced off commits in another one", "zombie_everywhere", _Unfenced, keeps=True),
    Defect("it says that it has committed, and commits later", "crash_everywhere", _Early),
    Defect("stored rows that were asked for are not returned", "second_row", _Unanswered, keeps=False),
    Defect("a transaction without rows is left out", "empty_everywhere", _Unmoved, keeps=True),
    Defect("it answers twice", "follow", _Talkative),
    Defect("a preview does what it says", "previewed", previews=False),
    Defect("a backfill fills nothing anew", "backfill", spec=_first_backfill, keeps=True),
)


Planted: TypeAlias = Callable[[Driver], Driver]
"""Puts a defect into a driver; `sound` puts none."""


def sound(driver: Driver) -> Driver:
    """Return the driver as it is."""
    return driver


class CheckedEndpoint:
    """An endpoint that is empty at first.  ``open`` returns one more driver to it.

    ``keeps``: it keeps a checkpoint, and so a fence.
    """

    def __init__(self, open: Callable[[], Driver], loop: LoopThread, planted: Planted = sound, *, keeps: bool) -> None:  # noqa: A002
        self.fences = keeps
        self._open = open
        self._loop = loop
        self._planted = planted
        self._keeps = keeps
        self._spec: MaterializationSpec | None = None

    def driver(self) -> Driver:
        """See `EndpointUnderTest.driver`."""
        return self._planted(_Observed(self._open(), self._observe))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """See `EndpointUnderTest.rows`."""
        bindings = () if self._spec is None else self._spec.bindings
        for binding in bindings:
            if binding.resource == table:
                return self._loop.run(self._read(binding))[1]
        return []

    def checkpoint(self, name: str) -> Checkpoint | None:
        """See `EndpointUnderTest.checkpoint`."""
        if not self._keeps:
            return None
        return NOTHING if self._spec is None else self._loop.run(self._read(self._spec.bindings[0]))[0] or NOTHING

    def _observe(self, spec: MaterializationSpec) -> None:
        self._spec = spec

    async def _read(self, binding: Binding) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
        assert self._spec is not None
        held = await self._open().contents(self._spec.name, binding)
        rows: list[dict[str, Any]] = []
        async with aclosing(held.tables) as tables:
            async for table in tables:
                rows += table.rename_columns(list(binding.schema.names)).to_pylist()
        return held.checkpoint, rows


class _Observed:
    """A driver whose last applied specification is noted."""

    def __init__(self, inner: Driver, observe: Callable[[MaterializationSpec], None]) -> None:
        self._inner = inner
        self._observe = observe

    async def spec(self) -> DriverSpec:
        return await self._inner.spec()

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        return await self._inner.validate(spec)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        applied = await self._inner.apply(spec, state)
        self._observe(spec)
        return applied

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        return await self._inner.preview(spec)

    async def open(self) -> Session:
        return await self._inner.open()

    async def contents(self, task: str, binding: Binding) -> Contents:
        return await self._inner.contents(task, binding)


Scenario = Callable[[Any], Coroutine[Any, Any, None]]
Opening = Callable[[int], Callable[[], Driver]]
"""Returns how drivers are opened to the endpoint of a number, which is empty."""

_FAILED: Final = (AssertionError, StrandlineError, pytest.fail.Exception)


class Outcome(Enum):
    """What became of a scenario."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario: its name, the ``defect`` that was planted (empty: none), and why it did not pass."""

    scenario: str
    defect: str
    outcome: Outcome
    why: str = ""

    @property
    def good(self) -> bool:
        """Whether this is what is wanted: sound it passes, and fails with a defect."""
        return self.outcome is Outcome.SKIPPED or (self.outcome is Outcome.FAILED) == bool(self.defect)


@dataclass(frozen=True, slots=True)
class _Step:
    """``many``: the scenario makes endpoints itself.  ``keeps``: only for those that keep a checkpoint."""

    run: Scenario
    many: bool = False
    keeps: bool = False


SCENARIOS: Final = {
    step.run.__name__: step
    for step in (
        _Step(driver_contract.follow),
        _Step(driver_contract.put_back),
        _Step(driver_contract.second_row),
        _Step(driver_contract.replaced),
        _Step(driver_contract.previewed),
        _Step(driver_contract.older_apply),
        _Step(driver_contract.finish),
        _Step(driver_contract.hostile_names),
        _Step(driver_contract.backfill, keeps=True),
        _Step(driver_contract.empty_everywhere, many=True),
        _Step(driver_contract.crash_everywhere, many=True),
        _Step(driver_contract.zombie_everywhere, many=True, keeps=True),
        _Step(driver_contract.backfill_everywhere, many=True, keeps=True),
    )
}


def check(opening: Opening) -> Iterator[Result]:
    """Yield the result of every scenario, one after the other; each has endpoints of its own.

    Raises:
        InvalidUsage: the endpoint cannot be read back.
    """
    numbers = count(1)
    loop = LoopThread()
    try:
        keeps = _keeps(opening(next(numbers)), loop)

        def make(planted: Planted = sound) -> CheckedEndpoint:
            return CheckedEndpoint(opening(next(numbers)), loop, planted, keeps=keeps)

        for name, step in SCENARIOS.items():
            if step.keeps and not keeps:
                yield Result(name, "", Outcome.SKIPPED, "this endpoint keeps no checkpoint")
            else:
                yield _tried(name, "", step, make)
        for defect in DEFECTS:
            if defect.keeps is not None and defect.keeps != keeps:
                why = "only of endpoints that keep a checkpoint" if defect.keeps else "only of those that keep none"
                yield Result(defect.scenario, defect.mistake, Outcome.SKIPPED, why)
            elif not defect.previews and not asyncio.run(opening(next(numbers))().preview(TWO)):
                yield Result(defect.scenario, defect.mistake, Outcome.SKIPPED, "its Apply has nothing to do")
            else:
                yield _tried(defect.scenario, defect.mistake, SCENARIOS[defect.scenario], _with(defect, make))
    finally:
        loop.stop()


def _with(defect: Defect, make: Callable[[Planted], CheckedEndpoint]) -> Callable[[], CheckedEndpoint]:
    return lambda: make(defect(set()))


def _keeps(open: Callable[[], Driver], loop: LoopThread) -> bool:  # noqa: A002
    """Return whether an endpoint keeps a checkpoint, by having it keep one."""
    endpoint = CheckedEndpoint(open, loop, keeps=True)
    world = World(endpoint)

    async def fill() -> None:
        world.write_round()
        runtime = world.runtime()
        await runtime.advance()
        await runtime.close()

    asyncio.run(fill())
    try:
        return endpoint.checkpoint(world.spec.name) != NOTHING
    except InvalidUsage as error:
        raise InvalidUsage(
            f"{error}; the suite of endpoints that are only pushed to is `push_contract` in "
            "strandline.testing.contracts.drivers"
        ) from error


def _tried(name: str, defect: str, step: _Step, make: Callable[[], CheckedEndpoint]) -> Result:
    try:
        asyncio.run(step.run(make if step.many else make()))
    except _FAILED as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Result(name, defect, Outcome.FAILED, lines[0])
    return Result(name, defect, Outcome.PASSED)


def described(name: str) -> str:
    """Return what a scenario does, in a sentence.

    >>> described("follow")
    'Advance through the history, and check after each step.'
    """
    return (inspect.getdoc(SCENARIOS[name].run) or "").partition("\n")[0]
