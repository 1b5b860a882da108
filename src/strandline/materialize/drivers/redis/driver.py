"""Redis: rows are written as they come, and the runtime's log commits (pattern 2).

Redis has no transaction that could hold rows and a checkpoint together for as long as a transaction of ours takes, so a
reader may see part of one, and a crash may leave part of one.  The next session replays exactly the same transaction:
last write wins, so the rows end up right.  The runtime's log stops a session that is not the newest; Redis does not.
If the server has lost writes of a session, the session's next write finds that out (`resources.Left`).

With the option ``exact`` a replay leaves the keys that it has already written unchanged, and Redis also stops an older
session (`resources.Marks`).  Then reduced rows are right as well.

Laws: M2, at the end of each transaction; with ``exact`` M3 and M4.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from strandline.algebra.schema import Column
from strandline.algebra.types import parse
from strandline.errors import DefinitionError
from strandline.materialize.driver import (
    Answers,
    Applied,
    Constraint,
    ConstraintKind,
    Contents,
    DriverSpec,
    Session,
    Validated,
)
from strandline.materialize.drivers.redis import resources
from strandline.materialize.drivers.redis.options import Form, RedisEndpoint
from strandline.materialize.drivers.redis.resources import Left, Marks, begin, take
from strandline.materialize.drivers.redis.server import (
    Change,
    Fence,
    Server,
    documents,
    hashes,
    pattern,
    row_keys,
    rows_of,
)
from strandline.materialize.drivers.rows import TRANSACTIONS, joined
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.messages import (
    DELETE,
    Acknowledge,
    Acknowledged,
    Conversation,
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
from strandline.materialize.protocol.task import WHOLE, Binding, KeyRange, MaterializationSpec, StateUpdate

NOTED_UNDER: Final = "range"
"""In the state of a session: under which key range the server has its note of the last transactions.

Right after a division, it is that of the task before.
"""


class RedisDriver:
    """The driver of one database."""

    def __init__(self, options: RedisEndpoint, spec: DriverSpec) -> None:
        self._options = options
        self._spec = spec

    async def spec(self) -> DriverSpec:
        """Return which configuration this driver takes."""
        return self._spec

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Return the verdict on each binding's columns; asks no server."""
        names = [binding.resource for binding in spec.bindings]
        for place, name in enumerate(names):
            if any(resources.nested(name, mark) for mark in resources.OURS):
                raise DefinitionError(f"{name!r} cannot be filled: the driver keeps its own keys there")
            for other in names[:place]:
                if resources.nested(other, name):
                    raise DefinitionError(
                        f"materialization {spec.name!r}: resources {other!r} and {name!r} would share keys"
                    )
        return tuple(Validated({c.name: _verdict(b, c) for c in b.columns}) for b in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Take the keys of new bindings, and empty those whose data are other ones."""

        def work() -> list[str]:
            with closing(Server(self._options)) as server:
                resources.require_keeping(server)
                found = resources.fits(server, spec)
                for fit in found:
                    resources.make(server, spec.name, fit)
                return [fit.action for fit in found if fit.action]

        return Applied("; ".join(await to_its_end(work)))

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return what `apply` would do."""

        def work() -> tuple[str, ...]:
            with closing(Server(self._options)) as server:
                return tuple(fit.action for fit in resources.fits(server, spec) if fit.action)

        return await to_its_end(work)

    def joined(self, states: Sequence[Any]) -> Any:
        """See `JoinsStates.joined`."""
        return joined(states)

    async def open(self) -> Session:
        """Start a conversation; no server is asked before `Open`."""
        return RedisSession(Server(self._options), self._options.format, exact=self._options.exact)

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Return the rows of the binding's resource; what changes while they are read may be of before or after."""
        return Contents(None, self._tables(binding))

    async def _tables(self, binding: Binding) -> AsyncGenerator[pa.Table, None]:
        with closing(Server(self._options)) as server:
            tables = self._found(server, binding)
            while (table := await to_its_end(lambda: next(tables, None))) is not None:
                yield table

    def _found(self, server: Server, binding: Binding) -> Iterator[pa.Table]:
        seen = set[bytes]()
        for keys in server.keys(pattern(binding.resource)):
            wanted = {xxhash.xxh3_128_digest(key): key for key in keys}  # Redis may name a key more than once
            kept = kept_at(server, self._options.format, [key for it, key in wanted.items() if it not in seen])
            seen.update(wanted)
            if kept:
                yield rows_of(binding, self._options.format, kept)


def kept_at(server: Server, form: Form, keys: list[bytes]) -> list[Any]:
    """Return what is kept under those of ``keys`` that are there."""
    read = "HGETALL" if form is Form.HASH else "GET"
    return [each for each in server.look([(read, key) for key in keys]) if each]


def _verdict(binding: Binding, column: Column) -> Constraint:
    if binding.delta:
        return Constraint(ConstraintKind.FIELD_FORBIDDEN, "Redis keeps the rows themselves: leave out the option delta")
    try:
        parse(column.name, column.type)
    except DefinitionError as error:
        return Constraint(ConstraintKind.INCOMPATIBLE, str(error))
    if column.name in binding.key:
        return Constraint(ConstraintKind.LOCATION_REQUIRED, "part of the key, kept as text")
    return Constraint(ConstraintKind.FIELD_OPTIONAL, "kept as text")


class RedisSession:
    """One conversation."""

    def __init__(self, server: Server, form: Form, *, exact: bool = False) -> None:
        self._server = server
        self._form = form
        self._exact = exact
        self._fences: tuple[Fence, ...] = ()
        self._left: Left | None = None
        self._replayed: frozenset[Marks] = frozenset()
        self._said = Conversation()
        self._answers = Answers()
        self._bindings: tuple[Binding, ...] = ()
        self._range: KeyRange = WHOLE
        self._committed: dict[str, int] = {}
        self._noted_under = ""

    async def send(self, message: Request) -> None:
        """Check and process a message."""
        self._said = self._said.then(message)
        match message:
            case Open(spec=spec, range=range_, state=state):
                self._bindings, self._range = spec.bindings, range_
                self._committed = dict((state or {}).get(TRANSACTIONS, {}))
                self._noted_under = (state or {}).get(NOTED_UNDER, "")
                await to_its_end(lambda: self._begin(spec))
                self._answer(Opened(None))
                if not self._exact:
                    self._answer(Acknowledged())  # nothing is ever staged
            case Acknowledge() if self._exact:
                await to_its_end(self._end)
                self._answer(Acknowledged())
            case Acknowledge():
                pass
            case Load():
                await self._load(message)
            case Flush():
                self._answer(Flushed())
            case Store(binding, rows):
                bound = self._bindings[binding]
                await to_its_end(lambda: self._server.change(self._changes(bound, rows), self._fences, self._left))
            case StartCommit():
                await self._commit()

    async def receive(self) -> Response:
        """Return the next answer."""
        return await self._answers.take()

    async def close(self) -> None:
        """End the connections."""
        await to_its_end(self._server.close)

    def _begin(self, spec: MaterializationSpec) -> None:
        self._left = begin(self._server, spec, self._range)
        if self._exact:
            resources.require_owned(self._server, spec)  # else it would fence the session of the task that has the keys
            filled = (binding for binding in self._bindings if not binding.gives_up)
            self._fences = tuple(take(self._server, binding, self._range) for binding in filled)
            begun = [self._marks(binding, ahead=1) for binding in self._bindings]
            self._replayed = frozenset(marks for marks in begun if marks.any(self._server))
        resources.require_owned(self._server, spec)  # and after the token: a session that takes the keys now refuses it
        if self._noted_under:  # else nothing was committed since ranges were joined
            resources.require_kept(self._server, self._bindings, self._noted_under, self._committed)

    def _end(self) -> None:
        """Drop the marks of the last transaction: it is committed, so it is replayed no more."""
        for binding in self._bindings:
            self._marks(binding).drop(self._server)

    def _marks(self, binding: Binding, ahead: int = 0) -> Marks:
        """Return the marks of the last transaction that was committed, or of the one that comes ``ahead`` of it."""
        return Marks.of(binding, self._range, self._committed.get(binding.state_key, 0) + ahead)

    def _answer(self, message: Response) -> None:
        self._said = self._said.then(message)
        self._answers.put(message)

    async def _load(self, message: Load) -> None:
        binding = self._bindings[message.binding]

        def work() -> pa.Table | None:
            kept = kept_at(self._server, self._form, row_keys(binding, message.keys))
            return rows_of(binding, self._form, kept) if kept else None

        found = await to_its_end(work)
        if found is not None:
            self._answer(Loaded(message.binding, found))

    def _changes(self, binding: Binding, rows: pa.Table) -> Iterator[Change]:
        if not self._exact:
            yield from (change for _, change in self._keyed(binding, rows))
            return
        marks = self._marks(binding, ahead=1)
        if marks in self._replayed:
            marked = marks.marked(self._server, row_keys(binding, rows))
            rows = rows.filter(pc.invert(pa.array(marked, pa.bool_())))
        for key, change in self._keyed(binding, rows):
            yield (*change, marks.mark(key))

    def _keyed(self, binding: Binding, rows: pa.Table) -> Iterator[tuple[bytes, Change]]:
        """Yield the key of each row, and what is to be done with it."""
        gone = rows[DELETE].combine_chunks()
        for key in row_keys(binding, rows.filter(gone)):
            yield key, (("UNLINK", key),)
        stored = rows.filter(pc.invert(gone))
        keys = row_keys(binding, stored)
        if self._form is Form.JSON:
            for key, document in zip(keys, documents(binding, stored), strict=True):
                yield key, (("SET", key, document),)
            return
        for key, fields, lacking in zip(keys, *hashes(binding, stored), strict=True):
            # Where it has NULL now, it may have had a value.
            yield key, (*((("UNLINK", key),) if lacking else ()), ("HSET", key, *fields))

    async def _commit(self) -> None:
        """Note the transaction behind its rows, which are all there, and have the runtime's log commit it."""
        numbers = {binding.state_key: self._committed.get(binding.state_key, 0) + 1 for binding in self._bindings}
        note = resources.progress(self._bindings, self._range, numbers)
        await to_its_end(lambda: self._server.change([note], self._fences, self._left))
        self._committed = numbers
        self._answer(StartedCommit(StateUpdate({TRANSACTIONS: numbers, NOTED_UNDER: str(self._range)})))
        if not self._exact:  # else once the marks are dropped
            self._answer(Acknowledged())
