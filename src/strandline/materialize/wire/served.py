"""A driver of ours, served as a Flow connector: Flow's specification and messages become our own, and answers Flow's.

The rows of consecutive Loads, or Stores, of one binding become one native message.  While the driver works on a request
its answers are written, so neither side waits for the other in a circle.

A column stands for a field.  A specification that came from us holds our own types (`specs.TYPE`) and is turned back
exactly.  In any other specification a column gets the type that its values are known to have, and a field whose values
may be of several types, or are objects or arrays, is kept as JSON text.
"""

from __future__ import annotations

import re
from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.algebra.types import parse
from strandline.errors import ProtocolViolation
from strandline.materialize.driver import Session
from strandline.materialize.log import RESTART
from strandline.materialize.protocol.messages import (
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
    flagged,
)
from strandline.materialize.protocol.task import Binding, Checkpoint, KeyRange, StateUpdate
from strandline.materialize.protocol.task import MaterializationSpec as Task
from strandline.materialize.wire.codec import Message, said
from strandline.materialize.wire.codec import Response as WireResponse
from strandline.materialize.wire.specs import KEY, column_type, kept, path_of, returned, untoken
from strandline.materialize.wire.tuples import unpack
from strandline.materialize.wire.values import column, compact, listed, plain, rows_of
from strandline.store.clock import Beside

_STATE_KEY: Final = re.compile(r".*\.v(?P<backfill>\d+)(?:-(?P<incarnation>[a-z0-9@-]*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A binding of ours that was made from Flow's.

    ``fields``: where in a document each column is, in the order of the columns.  ``texts``: the columns that are JSON
    text.  ``key``: the fields of a message's key, ``values`` those of its values.
    """

    binding: Binding
    fields: Mapping[str, tuple[str, ...]]
    texts: frozenset[str]
    key: tuple[str, ...]
    values: tuple[str, ...]


def task_of(spec: Message) -> tuple[Task, tuple[Incoming, ...]]:
    """Return the task that a specification describes.

    Raises:
        DefinitionError: a field cannot be a column of ours.
        ProtocolViolation: the specification contradicts itself.
    """
    name = untoken(spec.name)
    found = tuple(_binding(each, name) for each in spec.bindings)
    return Task(name, tuple(each.binding for each in found)), found


def _binding(spec: Message, task: str) -> Incoming:
    chosen = spec.field_selection
    said = _STATE_KEY.fullmatch(spec.state_key)
    return _made(
        spec.collection,
        resource=".".join(spec.resource_path),
        fields=(*chosen.keys, *chosen.values),
        keys=tuple(chosen.keys),
        delta=spec.delta_updates,
        backfill=spec.backfill,
        incarnation=(said["incarnation"] or "") if said is not None else "",
        task=task,
    )


def proposed_binding(proposed: Message, resource: str, *, delta: bool, task: str) -> Incoming:
    """Return a binding that is to be validated: it has all fields except the whole document.

    Raises as `task_of`.
    """
    collection = proposed.collection
    fields = tuple(each.field for each in collection.projections if each.ptr)
    by_pointer = {each.ptr: each.field for each in reversed(collection.projections) if each.is_primary_key}
    keys = tuple(proposed.group_by) or tuple(by_pointer.get(pointer, "") for pointer in collection.key)
    return _made(collection, resource, fields, keys, delta=delta, backfill=proposed.backfill, incarnation="", task=task)


def _made(
    collection: Message,
    resource: str,
    fields: Sequence[str],
    keys: tuple[str, ...],
    *,
    delta: bool,
    backfill: int,
    incarnation: str,
    task: str,
) -> Incoming:
    projections = {each.field: each for each in collection.projections}
    for name in (*fields, *keys):
        if name not in projections:
            raise ProtocolViolation(f"collection {collection.name!r} has no projection {name!r}")
    schema = _schema(collection)
    properties = schema.get("properties", {})
    order = {name: place for place, name in enumerate(properties)}
    ordered = sorted(fields, key=lambda name: order.get(name, len(order)))
    columns, texts = [], []
    for name in ordered:
        own = properties.get(name, {}) if path_of(projections[name].ptr) == (name,) else {}
        kind = column_type(name, own, projections[name].inference)
        texts += [name] if kind is None else []
        columns.append(Column(name, kind or "string"))
    further = {TIME, DIFF} & {*ordered}
    declared = schema.get(KEY)
    binding = Binding(
        untoken(collection.name),
        resource,
        tuple(declared) if isinstance(declared, list) else keys,
        Schema(tuple(column for column in columns if column.name not in further)),
        backfill,
        incarnation,
        delta=delta,
        times=TIME in further,
        diffs=DIFF in further,
        task=task,
    )
    return Incoming(
        binding,
        {name: path_of(projections[name].ptr) for name in ordered},
        frozenset(texts),
        keys,
        tuple(name for name in fields if name not in keys),
    )


def _schema(collection: Message) -> dict[str, Any]:
    text = collection.read_schema_json or collection.write_schema_json or b"{}"
    try:
        found = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"collection {collection.name!r}: its schema is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


BATCH_ROWS_MAX: Final = 10_000
"""Rows of a native message."""
BATCH_BYTES_MAX: Final = 8 << 20
_ROWS: Final = frozenset({"load", "store"})

Answer: TypeAlias = Callable[[list[Message]], Awaitable[None]]
Fail: TypeAlias = Callable[[Exception], None]


class Conversing:
    """One session.  ``answer`` writes messages; ``fail`` has the stream of requests raise an error."""

    def __init__(self, session: Session, opened: Message, answer: Answer, fail: Fail) -> None:
        self._session = session
        self._task, self._bindings = task_of(opened.materialization)
        self._opened = opened
        self._answer = answer
        self._fail = fail
        self._state = _json(opened.state_json or b"{}", "the state")
        self._waiting: list[Message] = []
        self._bytes = 0

    async def run(self, requests: AsyncIterator[Message], beside: Beside) -> None:
        """Hand on all requests until they end.  Raises what the session raises."""
        answering = None
        try:
            begin = self._opened.range
            range_ = KeyRange(begin.key_begin, begin.key_end)
            await self._session.send(Open(self._task, self._opened.version, range_, self._state))
            answering = beside(self._answers)
            async for request in requests:
                await self._request(request)
        finally:
            if answering is not None:
                await answering.cancel()
            await self._session.close()

    async def _answers(self) -> None:
        """Write what the session answers, until it has failed."""
        try:
            while True:
                await self._answer(list(self._said(await self._session.receive())))
        except CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised where requests are read
            self._fail(error)

    # --- requests -----------------------------------------------------------------------------------------------------
    async def _request(self, request: Message) -> None:
        name = said(request)
        if name in _ROWS:
            first = self._waiting[0] if self._waiting else None
            if first is not None and _batch(first) != _batch(request):
                await self._flush()
            self._waiting.append(request)
            self._bytes += request.ByteSize()
            if len(self._waiting) >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX:
                await self._flush()
            return
        await self._flush()
        match name:
            case "acknowledge":
                await self._session.send(Acknowledge())
            case "flush":
                await self._session.send(Flush())
            case "start_commit":
                found = request.start_commit.runtime_checkpoint
                await self._session.send(StartCommit(kept(found, self._task.state_keys)))
            case other:
                raise ProtocolViolation(f"{other} came inside a session")

    async def _flush(self) -> None:
        """Hand on the rows that wait."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for (name, place), each in groupby(waiting, _batch):
            await self._session.send(self._rows(name, place, list(each)))

    def _rows(self, name: str, place: int, messages: Sequence[Message]) -> Request:
        if place >= len(self._bindings):
            raise ProtocolViolation(f"{name} names binding {place}; there are {len(self._bindings)}")
        made = self._bindings[place]
        if name == "load":
            keys = [_tuple(each.load.key_json, each.load.key_packed, made.key) for each in messages]
            return Load(place, _table(made, made.key, keys).select(list(made.binding.key)))
        stores = [each.store for each in messages]
        rows = [
            (
                *_tuple(each.key_json, each.key_packed, made.key),
                *_tuple(each.values_json, each.values_packed, made.values),
            )
            for each in stores
        ]
        table = _table(made, (*made.key, *made.values), rows).select([c.name for c in made.binding.columns])
        exists, delete = np.array([(each.exists, each.delete) for each in stores], bool).T
        return Store(place, flagged(table, exists, delete))

    # --- answers ------------------------------------------------------------------------------------------------------
    def _said(self, response: Response) -> Iterator[Message]:
        match response:
            case Opened(checkpoint):
                found = self._restart() if checkpoint is None else returned(checkpoint)
                there = {} if found is None else {"runtime_checkpoint": found}
                yield WireResponse(opened={**there, "disable_load_optimization": response.loads_all})
            case Loaded(place, rows):
                for document in _documents(self._bindings[place], rows):
                    yield WireResponse(loaded={"binding": place, "doc_json": document})
            case Flushed(state):
                yield WireResponse(flushed=_state(state))
            case StartedCommit(state):
                yield WireResponse(started_commit=_state(state))
            case Acknowledged(state):
                yield WireResponse(acknowledged=_state(state))

    def _restart(self) -> Message | None:
        """Return the checkpoint that the driver's state names, to begin from."""
        named = self._state.get(RESTART) if isinstance(self._state, Mapping) else None
        return None if named is None else returned(Checkpoint.decode(named))


def _batch(request: Message) -> tuple[str, int]:
    """Return what rows of one native message have in common."""
    name = said(request)
    return name, getattr(request, name).binding


def _state(update: StateUpdate | None) -> dict[str, Any]:
    if update is None:
        return {}
    return {"state": {"updated_json": compact(update.updated), "merge_patch": update.merge_patch}}


def _json(text: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"{what} is not JSON: {error}") from error


def _tuple(text: bytes, data: bytes, fields: Sequence[str]) -> Sequence[Any]:
    """Return the values of a key, or of the other fields, which a message has as JSON, packed, or both."""
    if text:
        found = _json(text, "a row")
    else:
        try:
            found = [_json(each, "a row") if isinstance(each, bytes) else each for each in unpack(data)]
        except ValueError as error:
            raise ProtocolViolation(str(error)) from error
    if not isinstance(found, list) or len(found) != len(fields):
        raise ProtocolViolation(f"a row must have {len(fields)} values ({', '.join(fields)})")
    return found


def _table(made: Incoming, fields: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    kinds = {each.name: parse(each.name, each.type) for each in made.binding.columns}
    columns = {}
    for name, values in zip(fields, zip(*rows, strict=True) if fields else [], strict=True):
        read = [None if each is None else compact(each).decode() for each in values] if name in made.texts else values
        columns[name] = column(name, read, kinds[name])
    return pa.table(columns)


def _documents(made: Incoming, rows: pa.Table) -> Iterator[bytes]:
    """Yield the document of each row."""
    columns = []
    for name in rows.column_names:
        values = listed(plain(rows[name]))
        texts = name in made.texts
        columns.append([None if v is None else msgspec.Raw(v.encode()) for v in values] if texts else values)
    paths = [made.fields[name] for name in rows.column_names]
    if all(len(path) == 1 for path in paths):
        names = [name for (name,) in paths]
        yield from (msgspec.json.encode(dict(zip(names, row, strict=True))) for row in rows_of(columns))
        return
    yield from (msgspec.json.encode(_rebuilt(paths, row)) for row in rows_of(columns))


def _rebuilt(paths: Sequence[tuple[str, ...]], row: Sequence[Any]) -> dict[str, Any]:
    """Return the document that has these values at these places; what lies in another value is there already."""
    document: dict[str, Any] = {}
    for path, value in sorted(zip(paths, row, strict=True), key=lambda each: len(each[0])):
        at: Any = document
        for name in path[:-1]:
            at = at.setdefault(name, {}) if isinstance(at, dict) else None
        if isinstance(at, dict):
            at[path[-1]] = value
    return document
