"""A session with a connector: native messages in, native messages out, one child process for each.

A native Load or Store becomes a message for each of its rows; the documents that come back are gathered into tables.
Both directions pass `messages.Conversation`, so a connector that answers out of order is stopped at once.

A connector that owes an answer, or that must read what it is sent, and is silent for too long is taken for stuck and is
stopped.  An Acknowledged is owed too, but connectors delay it on purpose (by their own schedule of commits), so it is
waited for without end, and so are the rows that are sent meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from strandline.errors import DefinitionError, ProtocolViolation, StrandlineError, Unavailable
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Conversation,
    Flush,
    Flushed,
    Load,
    Loaded,
    Open,
    Opened,
    Place,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.refusals import FILLED_THERE
from strandline.materialize.protocol.task import Checkpoint, MaterializationSpec, StateUpdate, resource_of
from strandline.materialize.wire import rows
from strandline.materialize.wire.codec import Message, said
from strandline.materialize.wire.codec import Request as WireRequest
from strandline.materialize.wire.process.child import Child
from strandline.materialize.wire.specs import Selection, from_wire, to_wire
from strandline.materialize.wire.state import Kept, update_of
from strandline.materialize.wire.values import compact

_CLOCKS_END: Final = 2**32 - 1
"""The end of a range that Flow divides besides the keys', and we do not."""
SENT_ROWS: Final = 1_000
"""Rows that are turned into messages at a time."""
LOADED_ROWS_MAX: Final = 10_000
"""Rows of a Loaded."""
_OWED: Final = frozenset({Place.OPENING, Place.FLUSHING, Place.STARTING})
"""Where in the cycle a connector must answer."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a session needs to know of its task: its specification on the wire, the fields of each binding.

    The specification is not shown: it holds the connector's configuration.
    """

    spec: Message = field(repr=False)
    version: str
    chosen: tuple[Selection, ...]


Prepare: TypeAlias = Callable[[Child, MaterializationSpec, Kept], Awaitable[Prepared]]
"""Has the connector validate a task, given its state, before the session begins."""


class ConnectorSession:
    """See `driver.Session`."""

    def __init__(self, child: Child, prepare: Prepare, silence_s: float) -> None:
        self._child = child
        self._prepare = prepare
        self._silence_s = silence_s
        self._said = Conversation()
        self._watch: asyncio.TimerHandle | None = None
        self._sending = 0
        self._task: MaterializationSpec | None = None
        self._chosen: tuple[Selection, ...] = ()
        self._kept = Kept()
        self._begun = asyncio.Event()

    async def send(self, message: Request) -> None:
        """Send a message, row by row."""
        self._said = self._said.then(message)
        self._child.while_ = f"{type(message).__name__} was sent"
        self._sending += 1
        self._attend()
        try:
            await self._write(message)
        except StrandlineError as error:
            self._child.fail(error)
            raise
        finally:
            self._begun.set()
            self._sending -= 1
            self._attend()

    async def receive(self) -> Response:
        """Return the connector's next message; documents that came together are one."""
        await self._begun.wait()  # before, what comes is the answer to a unary call
        try:
            answer = self._answer(await self._child.receive())
            self._said = self._said.then(answer)
        except ProtocolViolation as error:
            raise self._stopped(error) from error
        self._attend()
        return answer

    async def close(self) -> None:
        """End the conversation, and the connector."""
        self._disregard()
        await self._child.close()

    # -----------------------------------------------------------------------------------------------------------------
    async def _write(self, message: Request) -> None:
        match message:
            case Open(task, _, range_, state):
                self._kept = Kept.of(state)
                prepared = await self._prepare(self._child, task, self._kept)
                self._child.while_ = "Open was sent"
                self._task, self._chosen = task, prepared.chosen
                opened = {
                    "materialization": prepared.spec,
                    "version": prepared.version,
                    "range": {"key_begin": range_.begin, "key_end": range_.end, "r_clock_end": _CLOCKS_END},
                    "state_json": compact(self._kept.connector),
                }
                await self._child.send([WireRequest(open=opened)])
            case Acknowledge():
                await self._child.send([WireRequest(acknowledge={})])
            case Load(place, keys):
                await self._all(rows.loads(place, keys))
            case Flush():
                await self._child.send([WireRequest(flush={})])
            case Store(place, table):
                await self._all(rows.stores(place, self._chosen[place], table))
            case StartCommit(checkpoint):
                await self._child.send([WireRequest(start_commit={"runtime_checkpoint": to_wire(checkpoint)})])

    async def _all(self, messages: Iterable[Message]) -> None:
        left = iter(messages)
        while batch := list(islice(left, SENT_ROWS)):
            await self._child.send(batch)
            self._attend()

    def _require_ours(self, checkpoint: Checkpoint | None) -> None:
        """Raise `DefinitionError` if the endpoint's checkpoint is one of another location's materialization."""
        assert self._task is not None, "a connector answers Open"
        for state_key, _ in () if checkpoint is None else checkpoint.times:
            if self._task.bindings[0].elsewhere(state_key):
                whom = f"materialization {self._task.name!r} of another location"
                rest = "what it has filled, and its checkpoint,"
                raise DefinitionError(FILLED_THERE.said(whom=whom, what=repr(resource_of(state_key)), rest=rest))

    def _answer(self, message: Message) -> Response:
        match said(message):
            case "opened":
                opened = message.opened
                there = opened.HasField("runtime_checkpoint")
                checkpoint = from_wire(opened.runtime_checkpoint) if there else None
                self._require_ours(checkpoint)
                return Opened(checkpoint, loads_all=opened.disable_load_optimization)
            case "loaded":
                return self._loaded(message.loaded)
            case "flushed":
                return Flushed(self._state(message.flushed))
            case "started_commit":
                return StartedCommit(self._state(message.started_commit))
            case "acknowledged":
                return Acknowledged(self._state(message.acknowledged))
            case other:
                raise ProtocolViolation(f"{other} came when {self._said.place.value}")

    def _loaded(self, first: Message) -> Loaded:
        """Return the document, and those that came right behind it, as one table."""
        assert self._task is not None, "the grammar lets nothing be loaded before Open"
        place = first.binding
        if place >= len(self._task.bindings):
            raise ProtocolViolation(f"Loaded names binding {place}; there are {len(self._task.bindings)}")
        documents = [first.doc_json]
        while len(documents) < LOADED_ROWS_MAX:
            following = self._child.peek()
            if following is None or not following.HasField("loaded") or following.loaded.binding != place:
                break
            documents.append(self._child.take().loaded.doc_json)
        return Loaded(place, rows.loaded(self._task.bindings[place], documents))

    def _state(self, message: Message) -> StateUpdate | None:
        update = update_of(message.state) if message.HasField("state") else None
        if update is None:
            return None
        self._kept, wrapped = self._kept.updated(update)
        return wrapped

    # --- silence ------------------------------------------------------------------------------------------------------
    def _attend(self) -> None:
        """Begin to wait anew for a sign of the connector, if it owes one."""
        self._disregard()
        must_read = self._sending and self._said.place is Place.STORING
        if self._said.place in _OWED or must_read:
            self._watch = asyncio.get_running_loop().call_later(self._silence_s, self._stuck)

    def _disregard(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _stuck(self) -> None:
        self._child.fail(
            Unavailable(
                f"connector {self._child.name} was silent for {self._silence_s:g} s when {self._child.while_}; "
                "it was stopped (option silence)"
            )
        )

    def _stopped(self, error: StrandlineError) -> StrandlineError:
        self._disregard()
        told = ProtocolViolation(f"connector {self._child.name}: {error}")
        self._child.fail(told)
        return told


def decoded(text: bytes, what: str) -> Mapping[str, Any]:
    """Return a JSON object of a connector's answer.

    Raises `ProtocolViolation` if it is none.
    """
    try:
        found = msgspec.json.decode(text or b"{}")
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"{what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ProtocolViolation(f"{what} is no object")
    return found
