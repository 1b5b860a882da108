"""Serves a driver of ours as a Flow connector: requests come from stdin, answers go to stdout, one line to stderr.

A runtime asks Spec, Validate and Apply as often as it likes, and then opens one session (`served.Conversing`).  If
anything fails, the last line of stderr says why (`child.line`) and the status is 1; the end of stdin ends
the session.

Rows are stored as columns, and a Loaded document is rebuilt from them, so whole documents are never stored.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, BinaryIO, Final

import msgspec

from strandline.errors import ConfigError, InvalidUsage, ProtocolViolation
from strandline.materialize.driver import Constraint, ConstraintKind, Driver, DriverKind
from strandline.materialize.protocol.task import MaterializationSpec
from strandline.materialize.wire.codec import PROTOCOL, Codec, Message, Request, Response, said
from strandline.materialize.wire.process.child import line
from strandline.materialize.wire.served import Conversing, proposed_binding, task_of
from strandline.materialize.wire.specs import path_of, untoken
from strandline.materialize.wire.values import compact
from strandline.options import understood
from strandline.store.clock import Beside, Clock

READ_BYTES: Final = 1 << 18
DELTA: Final = "deltaUpdates"
"""The switch, in the configuration of a resource, by which a runtime asks to give changes."""
_NOT_STORED: Final = Constraint(
    ConstraintKind.FIELD_FORBIDDEN, "rows are stored as columns, and documents are rebuilt from these"
)


def run(kind: DriverKind[Any], codec: Codec, clock: Clock, beside: Beside) -> int:
    """Serve the driver over this process' stdin and stdout, which are pipes; return the process' status.

    What anything else in this process prints goes to stderr.

    Raises `InvalidUsage` if one of them is a file.
    """
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout")):
        mode = os.fstat(stream.fileno()).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            raise InvalidUsage(
                f"{name} of a served driver is a file, and must be a pipe, a socket or a terminal: a runtime starts "
                f"this command and talks to it"
            )
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        asyncio.run(Served(kind, codec, clock, beside).serve(sys.stdin.buffer, answers))
    except Exception as error:  # noqa: BLE001 - the protocol has no other way to say it
        sys.stderr.write(f"{line(error)}\n")
        sys.stderr.flush()
        return 1
    return 0


class Served:
    """One runtime's use of a driver."""

    def __init__(self, kind: DriverKind[Any], codec: Codec, clock: Clock, beside: Beside) -> None:
        self._kind = kind
        self._codec = codec
        self._clock = clock
        self._beside = beside

    async def serve(self, requests: BinaryIO, answers: BinaryIO) -> None:
        """Answer all requests.  Raises what the driver raises, and `ProtocolViolation` for a wrong request."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(READ_BYTES)
        incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), requests)
        outgoing, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, answers)
        writer = asyncio.StreamWriter(outgoing, protocol, None, loop)

        async def answer(messages: list[Message]) -> None:
            writer.write(b"".join([self._codec.encode(each) for each in messages]))
            await writer.drain()

        try:
            async with aclosing(self._messages(reader)) as came:
                async for request in came:
                    if said(request) != "open":
                        await answer([await self._unary(request)])
                        continue
                    session = await self._driver(request.open.materialization.config_json).open()
                    conversing = Conversing(session, request.open, answer, reader.set_exception)
                    await conversing.run(came, self._beside)
                    return
        finally:
            writer.close()
            incoming.close()

    async def _messages(self, stream: asyncio.StreamReader) -> AsyncGenerator[Message, None]:
        reader = self._codec.reader(Request)
        while data := await stream.read(READ_BYTES):
            for message in reader.feed(data):
                yield message
        reader.end()

    # --- unary calls --------------------------------------------------------------------------------------------------
    async def _unary(self, request: Message) -> Message:
        match said(request):
            case "spec":
                return Response(spec=self._spec())
            case "validate":
                return Response(validated={"bindings": await self._validate(request.validate)})
            case "apply":
                return Response(applied=await self._apply(request.apply))
            case other:
                raise ProtocolViolation(f"{other} came before open")

    def _driver(self, config: bytes) -> Driver:
        found = _object(config, "the configuration")
        texts = {name: value if isinstance(value, str) else compact(value).decode() for name, value in found.items()}
        options = understood(f"driver {self._kind.name}", self._kind.options, texts, error=ConfigError)
        return self._kind.open(options, self._clock)

    @property
    def _name_option(self) -> str:
        """The option of a resource that names it: the first one that is required."""
        return str(self._kind.spec.resource_schema["required"][0])

    def _spec(self) -> dict[str, Any]:
        spec = self._kind.spec
        properties = dict(spec.resource_schema["properties"])
        properties[self._name_option] = {**properties[self._name_option], "x-collection-name": True}
        properties[DELTA] = {"type": "boolean", "default": False, "x-delta-updates": True}
        return {
            "protocol": PROTOCOL,
            "config_schema_json": compact(spec.config_schema),
            "resource_config_schema_json": compact({**spec.resource_schema, "properties": properties}),
            "documentation_url": spec.documentation_url,
        }

    async def _validate(self, request: Message) -> list[dict[str, Any]]:
        resources = [self._resource(each.resource_config_json) for each in request.bindings]
        task = untoken(request.name)
        made = [
            proposed_binding(each, name, delta=delta, task=task)
            for each, (name, delta) in zip(request.bindings, resources, strict=True)
        ]
        spec = MaterializationSpec(task, tuple(each.binding for each in made))
        verdicts = await self._driver(request.config_json).validate(spec)
        return [
            {
                "constraints": {
                    projection.field: _constraint(projection, verdict.constraints.get(projection.field, _NOT_STORED))
                    for projection in each.collection.projections
                },
                "resource_path": [name],
                "delta_updates": delta,
            }
            for each, verdict, (name, delta) in zip(request.bindings, verdicts, resources, strict=True)
        ]

    def _resource(self, text: bytes) -> tuple[str, bool]:
        """Return the name of a resource, and whether it is given changes."""
        found = _object(text, "the resource's configuration")
        name = found.get(self._name_option)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the resource's configuration lacks {self._name_option!r}")
        return name, found.get(DELTA) is True

    async def _apply(self, request: Message) -> dict[str, Any]:
        task, _ = task_of(request.materialization)
        driver = self._driver(request.materialization.config_json)
        applied = await driver.apply(task, _object(request.state_json, "the state"))
        if applied.state is None:
            return {"action_description": applied.action}
        state = {"updated_json": compact(applied.state.updated), "merge_patch": applied.state.merge_patch}
        return {"action_description": applied.action, "state": state}


def _constraint(projection: Message, verdict: Constraint) -> dict[str, Any]:
    """Return the verdict on a field: whole rows can be rebuilt only if everything at the top of a document is there."""
    kind, reason = verdict.kind, verdict.reason
    if kind is ConstraintKind.FIELD_OPTIONAL and len(path_of(projection.ptr)) == 1:
        kind = ConstraintKind.LOCATION_REQUIRED
    return {"type": int(kind), "reason": reason}


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text or b"{}")
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"{what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ProtocolViolation(f"{what} is no JSON object")
    return found
