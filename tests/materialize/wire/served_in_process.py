"""A connector that is served by a task of the same event loop: real pipes, real messages, and no process.

So what it serves may be anything that this process has, such as a driver with a defect that remembers something.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.materialize.drivers.sqlite.test_sqlite import SQLiteEndpoint

from strandline.materialize.driver import Driver, DriverKind, Session
from strandline.materialize.drivers.sqlite.kind import KIND
from strandline.materialize.wire import connector
from strandline.materialize.wire.codec import Codec
from strandline.materialize.wire.connector import ConnectorDriver
from strandline.materialize.wire.options import CodecName, ConnectorOptions
from strandline.materialize.wire.process.child import Child, Tail, _Pipes, line
from strandline.materialize.wire.serve import Served
from strandline.materialize.wire.session import ConnectorSession
from strandline.store.clock import Clock, SystemClock
from strandline.store.secret import Secret
from strandline.wiring.loop import RunningTask

ALIVE_MAX = 5
Put = Callable[[Driver], Driver]


class _Serving:
    """Stands for the process."""

    def __init__(self, kind: DriverKind[Any], codec: Codec) -> None:
        (requests, stdin), (stdout, answers), (stderr, words), (status, over) = (os.pipe() for _ in range(4))
        self.stdin, self.stdout, self.stderr, self.status = (
            os.fdopen(stdin, "wb", 0),
            os.fdopen(stdout, "rb", 0),
            os.fdopen(stderr, "rb", 0),
            status,
        )
        self.returncode: int | None = None
        self._served = Served(kind, codec, SystemClock(), partial(RunningTask, SystemClock()))
        self._ends = (words, over)
        self._task = RunningTask(SystemClock(), partial(self._serve, requests, answers))._task

    async def _serve(self, requests: int, answers: int) -> None:
        words, over = self._ends
        try:
            await self._served.serve(os.fdopen(requests, "rb", 0), os.fdopen(answers, "wb", 0))
            self.returncode = 0
        except Exception as error:  # noqa: BLE001 - as `serve.run`
            self.returncode = 1
            os.write(words, line(error).encode() + b"\n")
        finally:
            os.close(words)
            os.close(over)

    def wait(self) -> None:
        """Do nothing: it has ended."""

    def end(self) -> None:
        """End it at once."""
        with suppress(RuntimeError):  # its event loop has ended, and it with that
            self._task.cancel()


class ChildInProcess(Child):
    """A connector that serves ``kind``."""

    kind: DriverKind[Any]

    def __init__(
        self, name: str, codec: Codec, tail: Tail, command: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        self.name = name
        self.while_ = "it was started"
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        serving: Any = _Serving(self.kind, codec)
        self._process, self._status = serving, serving.status
        self._pipes = _Pipes(codec, tail, serving)
        self._ending = weakref.finalize(self, serving.end)


class ServedSQLite(SQLiteEndpoint):
    """One file that only connectors write; ``put``: puts a defect into the driver that is served."""

    def __init__(self, path: Path, codec: CodecName, patch: pytest.MonkeyPatch, put: Put) -> None:
        super().__init__(path)
        self._patch = patch
        self._sessions: deque[ConnectorSession] = deque()
        config = Secret(f'{{"path": "{path}"}}')
        self._options = ConnectorOptions(command="served in this process", codec=codec, config=config)

        def opened(options: Any, clock: Clock) -> Driver:
            return put(KIND.open(options, clock))

        served = DriverKind(KIND.name, KIND.options, KIND.resource, KIND.documentation_url, opened)
        self._child = type("ChildOfThis", (ChildInProcess,), {"kind": served})

    def driver(self) -> Any:
        """Return one more driver to the connector; of runtimes that crashed, some are left alive."""
        sessions, child, patch = self._sessions, self._child, self._patch

        class Driver(ConnectorDriver):
            async def _taken(self) -> Child:
                with patch.context() as own:
                    own.setattr(connector, "Child", child)
                    return await super()._taken()

            async def open(self) -> Session:
                session = await super().open()
                sessions.append(session)
                if len(sessions) > ALIVE_MAX:
                    sessions.popleft()._child.abandon()
                return session

        return Driver(self._options)

    def close(self) -> None:
        """Close the file."""
        self.kept.close()
