"""A process that follows the collections of `changing` with an endpoint, until it is killed or fenced.

It says on a line each, as JSON: where its session was opened, each commit that it begins, how far it is, and every
problem.  It ends as `strandline run` does: with status 4 if a newer runtime has taken over, and says so.

``until``: it ends well once its endpoint is there.  ``stop_at``: it stops itself (SIGSTOP) before that of its I/O
points: a message, a statement or request, a call of its log or its collections; ``kill_at``: it is killed there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.kill.endpoints.changing import KEPT, LOG, PUSHED, open_client

from strandline.cli.terminal.exits import Exit, exit_of, sentence
from strandline.errors import FencedError, StrandlineError
from strandline.instance.tasks import CollectionFeed
from strandline.materialize.driver import Session
from strandline.materialize.drivers.delta.table import DeltaLakeTable
from strandline.materialize.drivers.kafka.driver import Writer
from strandline.materialize.drivers.postgres.database import PostgresConnection
from strandline.materialize.drivers.redis.server import Server
from strandline.materialize.drivers.sqlite.file import SQLiteConnection
from strandline.materialize.drivers.staged.place import ArrowPlace, LocalPlace
from strandline.materialize.drivers.webhook.receiver import Receiver
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.messages import Opened, Request, Response, StartCommit
from strandline.materialize.protocol.task import MaterializationSpec
from strandline.materialize.runtime import Task
from strandline.testing.simulation.crashes import CrashPlan, Tapped
from strandline.wiring import registry
from strandline.wiring.loop import RunningTask

T = TypeVar("T")

BREATH_S = 0.01
STATEMENTS = ("begin", "commit", "rollback", "change", "query", "read", "stage", "append")
FILES = ("create", "open", "size", "remove", "below")
TABLES = ("snapshot", "create", "own", "recreate", "commit", "write", "read")


def say(**what: Any) -> None:
    """Write a line at once."""
    os.write(1, json.dumps(what).encode() + b"\n")


class StopPlan(CrashPlan):
    """Sends this process a signal before point number ``at`` (None: never)."""

    def __init__(self, at: int | None, number: signal.Signals) -> None:
        super().__init__()
        self.stop_at = at
        self._number = number

    @property
    def met(self) -> bool:
        """Return whether the point was reached."""
        return self.stop_at is not None and len(self.points) >= self.stop_at

    def pass_by(self, label: str) -> None:
        """Count a point."""
        self.points.append(label)
        if len(self.points) == self.stop_at:
            say(stopped=label)
            os.kill(os.getpid(), self._number)

    async def through(self, label: str, call: Callable[[], Awaitable[T]]) -> T:
        """Count a point, and make the call."""
        self.pass_by(label)
        return await call()


class Telling:
    """A session that says where it was opened, and each commit that is begun."""

    def __init__(self, inner: Session, spec: MaterializationSpec) -> None:
        self._inner = inner
        self._keys = spec.state_keys

    async def send(self, message: Request) -> None:
        """See `Session.send`."""
        if isinstance(message, StartCommit):
            say(began=message.checkpoint.time(self._keys))
        await self._inner.send(message)

    async def receive(self) -> Response:
        """See `Session.receive`."""
        message = await self._inner.receive()
        if isinstance(message, Opened):
            say(opened=None if message.checkpoint is None else message.checkpoint.time(self._keys))
        return message

    async def close(self) -> None:
        """See `Session.close`."""
        await self._inner.close()


class TellingDriver:
    """A driver whose sessions are `Telling`."""

    def __init__(self, inner: Any, spec: MaterializationSpec) -> None:
        self._inner = inner
        self._spec = spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def open(self) -> Session:
        """See `Driver.open`."""
        return Telling(await self._inner.open(), self._spec)


def count_blocking_calls(plan: StopPlan) -> None:
    """Have each statement, and each access to a file of a table, be a point, too."""

    def counted(kind: type[Any], name: str) -> None:
        real = getattr(kind, name)

        def call(self: Any, *args: Any, **named: Any) -> Any:
            plan.pass_by(f"{kind.__name__}.{name}")
            return real(self, *args, **named)

        setattr(kind, name, call)

    for kind in (PostgresConnection, SQLiteConnection):
        for name in STATEMENTS:
            counted(kind, name)
    for kind in (LocalPlace, ArrowPlace):
        for name in FILES:
            counted(kind, name)
    for name in TABLES:
        counted(DeltaLakeTable, name)
    counted(Server, "_run")
    counted(Receiver, "post")
    for name in ("push", "commit"):
        counted(Writer, name)


async def follow(given: dict[str, Any]) -> int:
    """Follow until killed, fenced, or there."""
    root, spec = Path(given["root"]), PUSHED if given["push"] else KEPT
    client, engine = open_client(root)
    stops = "stop_at" in given
    plan = StopPlan(given.get("stop_at", given.get("kill_at")), signal.SIGSTOP if stops else signal.SIGKILL)
    clock = client.clock
    driver: Any = TellingDriver(registry.driver(clock, given["kind"], given["options"]), spec)
    if plan.stop_at is not None:
        count_blocking_calls(plan)
        driver = Tapped(plan, "driver", driver, opens=("open",))
        client.consensus = Tapped(plan, "consensus", client.consensus)  # type: ignore[assignment]
    feeds = []
    for binding in spec.bindings:
        reader = await client.reader(binding.collection, binding.schema, binding.collection)
        assert reader is not None
        since = await client.since(reader.state.shard, LOG, given["epoch"])
        feeds.append(CollectionFeed(reader, since, engine, item=spec.name))
    log = RecoveryLog(clock, client.ids, client.consensus, LOG, given["epoch"])
    task = Task(spec, driver, log, feeds, beside=partial(RunningTask, clock))
    until = given.get("until")
    while True:
        try:
            moved = await task.advance()
        except FencedError:
            raise
        except StrandlineError as error:
            say(problem=f"{type(error).__name__}: {error}")
        else:
            if moved:
                say(position=task.status.position, checkpoint=task.status.checkpoint)
            if stops and not plan.met:
                say(points=len(plan.points))
                return Exit.OK
            if until is not None and task.status.position >= until:
                await task.close()
                return Exit.OK
        await clock.sleep(BREATH_S)


def main(given: dict[str, Any]) -> int:
    """Run; return the exit status."""
    try:
        return asyncio.run(follow(given))
    except FencedError as error:
        sys.stderr.write(f"strandline: fenced: {sentence(error)}\n")
        return exit_of(error)
