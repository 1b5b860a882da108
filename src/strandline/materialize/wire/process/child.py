"""A connector's process: messages go to its stdin and come from its stdout; the end of its stderr says why it failed.

The event loop calls `_Pipes` whenever the connector has written something, so stdout and stderr are drained at all
times, also while a message is being written; so neither side waits for the other in a circle.  Messages that are not
received yet are kept; if they are many and nothing is being written, the connector waits.

The connector leads a process group under a `guard`, and ends with it when this process ends, by whatever cause.

Our own drivers, when they are served, begin their last line on stderr with the class of the error.  A failure of any
other program is `Unavailable`, so that the task tries again, unless its last line says that the session was fenced.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from strandline.errors import (
    ConfigError,
    CorruptionError,
    DefinitionError,
    FencedError,
    InvalidUsage,
    ProtocolViolation,
    StrandlineError,
    Unavailable,
)
from strandline.materialize.protocol.refusals import OTHER_OPTIONS
from strandline.materialize.wire.codec import Codec, Message, Response
from strandline.materialize.wire.process import guard
from strandline.materialize.wire.process.guard import NOT_STARTED
from strandline.problem import Problem, Stopped, Way
from strandline.store.secret import SHOWN, Secret

_CLASSES: Final = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        CorruptionError,
        DefinitionError,
        FencedError,
        InvalidUsage,
        ProtocolViolation,
        Unavailable,
    )
}
NO_PROGRAM: Final = Problem(
    "connector-not-started",
    "connector {connector} could not be started when {when}: {why}",
    Stopped.ENDPOINT,
    (Way("install the connector's program where Strandline looks for it"), OTHER_OPTIONS),
)
_FENCED: Final = "fenced off"


def line(error: Exception) -> str:
    r"""Return the last line of a served driver that ends by an error; `failure` understands it.

    >>> line(DefinitionError("a column\nis missing")), line(KeyError("x"))
    ('DefinitionError: a column is missing', "KeyError: 'x'")
    """
    name = next((name for name, kind in _CLASSES.items() if isinstance(error, kind)), type(error).__name__)
    return f"{name}: {' '.join(str(error).split()) or name}"


def failure(connector: str, reason: str, status: int | None, while_: str) -> StrandlineError:
    """Return the error for a connector that ended.

    >>> failure("x", "ConfigError: no", 1, "Apply was sent"), failure("x", "", 137, "Flush was sent")
    (ConfigError('no'), Unavailable('connector x ended (status 137) when Flush was sent, without a word'))
    """
    name, _, text = reason.partition(": ")
    if name in _CLASSES and text:
        return _CLASSES[name](text)
    ended = f"connector {connector} ended ({'status unknown' if status is None else f'status {status}'})"
    said = f"{ended} when {while_}: {reason}" if reason else f"{ended} when {while_}, without a word"
    if _FENCED in reason.lower():
        return FencedError(said)
    if status == NOT_STARTED:
        return ConfigError(NO_PROGRAM.said(connector=connector, when=while_, why=reason or "without a word"))
    return Unavailable(said)


KEPT_BYTES: Final = 64 << 10
LINE_MAX: Final = 1_000
"""How much of the last line a message shows."""
_SECRET_MIN: Final = 3
"""Shorter texts are in many words: to hide them would hide nothing and garble all."""


class Tail:
    """The last bytes that were written.

    A line may be a text, or JSON as structured logs write it (``msg`` or ``message``, with ``error`` or ``err``).
    `Tail.last` returns no secret texts.
    """

    def __init__(self, secrets: Sequence[Secret] = ()) -> None:
        self._kept = bytearray()
        self._secrets = secrets

    def add(self, data: bytes) -> None:
        """Keep ``data``, and drop what is too old."""
        self._kept += data[-KEPT_BYTES:]
        del self._kept[:-KEPT_BYTES]

    @property
    def last(self) -> str:
        """The last line that is not empty, for a message; an empty text if there is none."""
        lines = bytes(self._kept).decode("utf-8", "replace").split("\n")
        found = next((line.strip() for line in reversed(lines) if line.strip()), "")
        reason = _message(found)
        for secret in sorted(self._secrets, key=lambda each: -len(each.reveal())):
            if len(secret.reveal()) >= _SECRET_MIN:
                reason = reason.replace(secret.reveal(), SHOWN)
        return f"{reason[:LINE_MAX]}…" if len(reason) > LINE_MAX else reason


def _message(line: str) -> str:
    """Return what a line of a structured log says; any other line as it is.

    >>> _message('{"level":"fatal","msg":"failed","error":"no such host"}'), _message("plain")
    ('failed: no such host', 'plain')
    """
    try:
        found = msgspec.json.decode(line) if line.startswith("{") else None
    except msgspec.MsgspecError:
        return line
    if not isinstance(found, dict):
        return line
    parts = [_text(found, "msg", "message"), _text(found, "error", "err")]
    return ": ".join(part for part in parts if part) or line


def _text(found: dict[str, Any], *names: str) -> str:
    return next((str(found[name]) for name in names if found.get(name)), "")


WAITING_BYTES_MAX: Final = 8 << 20
"""How much a connector may answer ahead of what is received, while nothing is sent to it."""
WRITTEN_BYTES: Final = 1 << 20
"""How much is written ahead of what a connector reads."""
END_S: Final = 10.0
"""How long a connector may take to end after its stdin has ended."""
LINGER_S: Final = 1.0
"""How long is waited, after a connector has ended, for what another process may still write to its pipes."""
_STDOUT: Final = "stdout"
_STDERR: Final = "stderr"
_STATUS: Final = "status"


class Child:
    """One connector.  It belongs to the event loop in which it was started."""

    def __init__(
        self, name: str, codec: Codec, tail: Tail, command: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        self.name = name
        self.while_ = "it was started"
        """What the connector was asked last, for messages."""
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        life, held = os.pipe()
        status, ours = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the endpoint's owner names the program
                [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(life), str(ours), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(variables),
                pass_fds=(life, ours),
                start_new_session=True,
            )
        except BaseException:
            os.close(held)
            os.close(status)
            raise
        finally:
            os.close(life)
            os.close(ours)
        self._status = status
        self._pipes = _Pipes(codec, tail, self._process)
        self._ending = weakref.finalize(self, _end, self._process, held)

    @classmethod
    async def start(
        cls, name: str, codec: Codec, tail: Tail, command: Sequence[str], variables: Mapping[str, str]
    ) -> Child:
        """Start a program.  That it cannot be started is found when it is talked to."""
        child = cls(name, codec, tail, command, variables)
        try:
            await child._pipes.connect(child._loop, os.fdopen(child._status, "rb", buffering=0))
        except BaseException:
            child.abandon()
            raise
        return child

    @property
    def here(self) -> bool:
        """Whether it runs, and in this event loop."""
        return self._loop is asyncio.get_running_loop() and not self._pipes.ended

    async def send(self, messages: Sequence[Message]) -> None:
        """Write messages; return when the connector has taken them, or nearly.

        Raises as `receive`.
        """
        if (error := self._error()) is not None:
            raise error
        self._pipes.write(b"".join([self._codec.encode(each) for each in messages]))
        await self._pipes.written()
        if (error := self._error()) is not None:
            raise error

    async def receive(self) -> Message:
        """Return the connector's next message, waiting for it.  It may be cancelled.

        Raises:
            ProtocolViolation: the bytes are no message, or the connector ended inside one.
            StrandlineError: the connector has ended; which error it is depends on the reason it gave.
        """
        while not self._pipes.came:
            if (error := self._error()) is not None:
                raise error
            await self._pipes.changed()
        return self._pipes.take()

    def peek(self) -> Message | None:
        """Return the message that `receive` would return without waiting; it stays."""
        return self._pipes.came[0][0] if self._pipes.came else None

    def take(self) -> Message:
        """Return the message that `peek` showed, and take it."""
        return self._pipes.take()

    def fail(self, error: StrandlineError) -> None:
        """End the connector at once; from now on ``error`` is raised."""
        self._pipes.fail(error)
        self.abandon()

    async def close(self) -> None:
        """End the connector: by the end of its stdin, or by force if that takes too long.  May be called twice."""
        self._pipes.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._pipes.exited.wait()
        self.abandon()

    def abandon(self) -> None:
        """End the connector, and what it has started, at once."""
        self._ending()
        if not self._loop.is_closed():
            self._pipes.drop()

    def _error(self) -> StrandlineError | None:
        """Return why nothing more comes from the connector; None if something may."""
        if self._pipes.error is not None:
            return self._pipes.error
        if not self._pipes.ended:
            return None
        if self._pipes.cut:
            return ProtocolViolation(f"{self._pipes.cut}: {self._pipes.tail.last or 'it said nothing on stderr'}")
        return failure(self.name, self._pipes.tail.last, self._process.returncode, self.while_)


def _end(process: subprocess.Popen[bytes], life: int) -> None:
    """End a connector's process group, and wait for its guard."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    os.close(life)
    process.wait()


class _Pipes:
    """What the event loop tells of a connector's pipes, and what has come of it."""

    def __init__(self, codec: Codec, tail: Tail, process: subprocess.Popen[bytes]) -> None:
        self.came: deque[tuple[Message, int]] = deque()
        self.tail = tail
        self.error: StrandlineError | None = None
        self.cut = ""
        """Inside which message stdout has ended, if it has."""
        self.exited = asyncio.Event()
        self._process = process
        self._reader = codec.reader(Response)
        self._open: dict[str, asyncio.ReadTransport] = {}
        self._waiting = 0
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._stdin: asyncio.WriteTransport | None = None
        self._paused = False

    async def connect(self, loop: asyncio.AbstractEventLoop, status: object) -> None:
        """Have the event loop read and write the pipes."""
        readable = {_STATUS: status, _STDOUT: self._process.stdout, _STDERR: self._process.stderr}
        for name, pipe in readable.items():
            self._open[name], _ = await loop.connect_read_pipe(lambda name=name: _Reading(self, name), pipe)  # type: ignore[misc]
        self._stdin, _ = await loop.connect_write_pipe(lambda: _Writing(self), self._process.stdin)
        self._stdin.set_write_buffer_limits(WRITTEN_BYTES)

    @property
    def ended(self) -> bool:
        """Whether nothing more can come: all that the connector wrote was read, and it has ended."""
        return self.error is not None or (self.exited.is_set() and not self._open)

    # --- the event loop calls -----------------------------------------------------------------------------------------
    def data(self, name: str, data: bytes) -> None:
        """Keep what was written."""
        if name == _STDERR:
            self.tail.add(data)
        elif name == _STDOUT and self.error is None:
            try:
                for message in self._reader.feed(data):
                    size = message.ByteSize()
                    self.came.append((message, size))
                    self._waiting += size
            except ProtocolViolation as error:
                self.fail(error)
            self._pace()

    def lost(self, name: str) -> None:
        """Note that a pipe has ended."""
        self._open.pop(name, None)
        if name == _STDOUT:
            try:
                self._reader.end()
            except ProtocolViolation as error:
                self.cut = str(error)
        elif name == _STATUS:
            self._process.wait()  # the guard is about to end: nothing else has this pipe
            self.exited.set()
            asyncio.get_running_loop().call_later(LINGER_S, self._left)
        self._notify()

    def writable(self, *, now: bool) -> None:
        """Note whether the connector reads."""
        if now:
            self._writable.set()
        else:
            self._writable.clear()
        self._pace()

    # --- the connector's user calls -----------------------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        """Write to stdin."""
        assert self._stdin is not None, "it is connected"
        self._stdin.write(data)

    async def written(self) -> None:
        """Return when the connector has read nearly all that was written, or has ended."""
        while not self._writable.is_set() and not self.ended:
            await self.changed()

    async def changed(self) -> None:
        """Return when something has come, or ended, or can be written."""
        self._changed.clear()
        await self._changed.wait()

    def take(self) -> Message:
        """Return the oldest message."""
        message, size = self.came.popleft()
        self._waiting -= size
        self._pace()
        return message

    def fail(self, error: StrandlineError) -> None:
        """Raise ``error`` from now on, unless there is an earlier one."""
        self.error = self.error or error
        self._notify()

    def end(self) -> None:
        """End stdin, behind what was written."""
        if self._stdin is not None:
            self._stdin.close()

    def drop(self) -> None:
        """Close what is open of a connector that was ended."""
        if self._stdin is not None and (self._stdin.get_write_buffer_size() or not self._stdin.is_closing()):
            self._stdin.abort()
        for pipe in self._open.values():
            pipe.close()

    def _left(self) -> None:
        """Close the pipes that another process still has."""
        if not self._paused:
            self.drop()

    def _notify(self) -> None:
        self._changed.set()

    def _pace(self) -> None:
        """Let the connector wait if it is far ahead, unless we wait for it."""
        wanted = self._waiting > WAITING_BYTES_MAX and self._writable.is_set()
        if wanted != self._paused and _STDOUT in self._open:
            self._paused = wanted
            if wanted:
                self._open[_STDOUT].pause_reading()
            else:
                self._open[_STDOUT].resume_reading()
        self._notify()


class _Reading(asyncio.Protocol):
    """One pipe that the connector writes."""

    def __init__(self, pipes: _Pipes, name: str) -> None:
        self._pipes = pipes
        self._name = name

    def data_received(self, data: bytes) -> None:
        """Hand on what came."""
        self._pipes.data(self._name, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on that the pipe has ended."""
        self._pipes.lost(self._name)


class _Writing(asyncio.BaseProtocol):
    """The connector's stdin."""

    def __init__(self, pipes: _Pipes) -> None:
        self._pipes = pipes

    def pause_writing(self) -> None:
        """Hand on that the connector does not read."""
        self._pipes.writable(now=False)

    def resume_writing(self) -> None:
        """Hand on that it does."""
        self._pipes.writable(now=True)
