"""One Redis database as this driver asks it: pipelined calls, and rows as keys and values.

Every call blocks for a bounded time, raises redis-py's errors as ours, and is idempotent, so that a caller that got no
answer may repeat it.  This module repeats nothing: the runtime opens a new session, which replays the transaction.

The key of a row is its resource, a colon, and the values of its key columns with colons between them.  In a value ``%``
is ``%25`` and ``:`` is ``%3A``, and NULL is ``%NULL``.  So different keys have different texts, and a key of plain
words and numbers stays readable: ``orders:42``.

Source: https://redis.io/docs/latest/commands/, https://redis-py.readthedocs.io/en/stable/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from strandline.algebra.types import Array, Atom, Struct, Type, parse
from strandline.errors import (
    ConfigError,
    DefinitionError,
    FencedError,
    ProtocolViolation,
    StrandlineError,
    Unavailable,
    first_line,
)
from strandline.materialize.drivers.redis.options import Form, RedisEndpoint
from strandline.materialize.drivers.rows import bare, objects, one_zero
from strandline.materialize.protocol.refusals import DENIED, OTHER_KIND
from strandline.materialize.protocol.task import Binding
from strandline.materialize.wire.values import column

ANSWER_SECONDS_MAX: Final = 10
"""A server that says nothing for so long is unavailable."""
COMMANDS_AT_ONCE: Final = 1_000
"""So many commands are one transaction (MULTI); a server does nothing else meanwhile."""

Command: TypeAlias = tuple[Any, ...]
Change: TypeAlias = tuple[Command, ...]
"""What must not be seen half done."""
RACES_MAX: Final = 100
"""How often others may change what is watched in a row."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Whose turn it is to write: the hash ``key`` must have ``token`` under ``field``.  ``what``: in messages."""

    key: bytes
    field: bytes
    token: bytes
    what: str


class Token(Protocol):
    """What a writer left with its last write (`resources.Left`)."""

    def look(self) -> tuple[bytes, bytes]:
        """Return the hash and the field that have it."""
        ...

    def refusal(self, found: bytes | None, server: str) -> StrandlineError | None:
        """Return why nothing may be written, given what is there; None: it may."""
        ...

    def leave(self) -> Command:
        """Return the command that leaves the next one."""
        ...

    def was_left(self) -> None:
        """Count a write that was done."""
        ...


class Server:
    """See the module.  It connects when it is first asked."""

    def __init__(self, options: RedisEndpoint) -> None:
        self.name = options.called
        self._client: Any = redis.Redis(**options.parameters(ANSWER_SECONDS_MAX), retry=Retry(NoBackoff(), 0))

    def ask(self, *command: Any) -> Any:
        """Return the answer to one command.

        Raises:
            Unavailable: the server does not answer, or cannot write now; try again later.
            ConfigError: it does not let this user do it.
            DefinitionError: it refuses it for good.
        """
        with self._errors():
            return self._client.execute_command(*command)

    def change(self, changes: Iterable[Change], fences: Sequence[Fence] = (), left: Token | None = None) -> None:
        """Run changes, about `COMMANDS_AT_ONCE` commands together or none of these.

        Raises as `ask`, `FencedError` if one of ``fences`` has fallen, and what ``left`` says: then nothing is run.
        """
        together: list[Command] = []
        for change in changes:
            together += change
            if len(together) >= COMMANDS_AT_ONCE:
                self._run(together, atomic=True, fences=fences, left=left)
                together = []
        self._run(together, atomic=True, fences=fences, left=left)

    def exchange(self, key: bytes, change: Callable[[dict[bytes, bytes]], Sequence[Command]]) -> None:
        """Run what ``change`` makes of the hash ``key``, while no other client changes the hash.  Raises as `ask`."""
        with self._errors(), self._client.pipeline(transaction=True) as pipeline:
            for _ in range(RACES_MAX):
                pipeline.watch(key)
                if self._queued(pipeline, change(pipeline.hgetall(key))) is not None:
                    return
        raise Unavailable(f"{self.name}: too many sessions open at once; try again")

    def look(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands that change nothing.  Raises as `ask`."""
        found: list[Any] = []
        for start in range(0, len(commands), COMMANDS_AT_ONCE):
            found += self._run(commands[start : start + COMMANDS_AT_ONCE], atomic=False)
        return found

    def keys(self, pattern: bytes) -> Iterator[list[bytes]]:
        """Yield all keys that match, some at a time; one may come twice.  Raises as `ask`."""
        cursor: Any = 0
        while True:
            cursor, found = self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", COMMANDS_AT_ONCE)
            if found:
                yield found
            if int(cursor) == 0:
                return

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def _run(
        self, commands: Sequence[Command], *, atomic: bool, fences: Sequence[Fence] = (), left: Token | None = None
    ) -> list[Any]:
        if not commands:
            return []
        with self._errors(), self._client.pipeline(transaction=atomic) as pipeline:
            for _ in range(RACES_MAX):
                self._look(pipeline, fences, left)
                answers = self._queued(pipeline, commands if left is None else [*commands, left.leave()])
                if answers is not None:
                    if left is not None:
                        left.was_left()
                    return answers
        raise Unavailable(f"{self.name}: too many sessions open at once; try again")

    def _look(self, pipeline: Any, fences: Sequence[Fence], left: Token | None) -> None:
        """Watch what has to stay as it is until the commands are run, and raise unless it is as it must be."""
        tokens = [] if left is None else [left.look()]
        watched = [*tokens, *((fence.key, fence.field) for fence in fences)]
        if watched:
            pipeline.watch(*(key for key, _ in watched))
        if left is not None and (refusal := left.refusal(pipeline.hget(*left.look()), self.name)) is not None:
            raise refusal
        for fence in fences:
            if pipeline.hget(fence.key, fence.field) != fence.token:
                raise FencedError(f"{fence.what} of {self.name} were taken over by another session")

    def _queued(self, pipeline: Any, commands: Sequence[Command]) -> list[Any] | None:
        """Return the answers to commands; None if nothing was run, since another client changed what is watched."""
        if pipeline.watching:
            pipeline.multi()
        for command in commands:
            pipeline.execute_command(*command)
        try:
            answers: list[Any] = pipeline.execute()
        except exceptions.WatchError as error:
            broken = error.__context__
            if isinstance(broken, exceptions.ConnectionError | exceptions.TimeoutError):
                raise broken from None  # the client library says the same of a lost answer, and that may have run
            return None
        return answers

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            raise self._ours(error) from error

    def _ours(self, error: Exception) -> StrandlineError:
        said = first_line(error)
        match error:
            case exceptions.AuthenticationError() | exceptions.NoPermissionError():
                return ConfigError(DENIED.said(endpoint=self.name, why=said))
            case exceptions.OutOfMemoryError():
                return Unavailable(f"{self.name} takes nothing more: {said}; raise its maxmemory")
            case exceptions.ConnectionError() | exceptions.TimeoutError() | OSError():
                return Unavailable(f"{self.name} does not answer: {said}")
            case exceptions.ResponseError() if "WRONGTYPE" in said:
                return DefinitionError(OTHER_KIND.said(endpoint=self.name, why=said))
        return Unavailable(f"{self.name} refuses a command: {said}")


SEPARATOR: Final = ":"
EMPTY: Final = "__null"
"""The field of a row all of whose columns are NULL: a hash without fields is not there."""
_NULL: Final = pa.scalar("%NULL")
_GLOB: Final = str.maketrans({sign: f"\\{sign}" for sign in "\\*?[]"})

Kept = bytes | Mapping[bytes, bytes]
"""What is under a key: a JSON text, or the fields of a hash."""


def prefix(resource: str) -> str:
    """Return what the keys of a resource's rows begin with.

    >>> prefix("orders")
    'orders:'
    """
    return resource + SEPARATOR


def pattern(resource: str) -> bytes:
    r"""Return the pattern that matches these keys and no others.

    >>> pattern("a*b")
    b'a\\*b:*'
    """
    return (prefix(resource).translate(_GLOB) + "*").encode()


def row_keys(binding: Binding, rows: pa.Table) -> list[bytes]:
    """Return the key of each row; ``rows`` has the key columns.

    >>> from strandline.algebra.schema import Column, Schema
    >>> b = Binding("v", "t", ("a", "b"), Schema((Column("a", "string"), Column("b", "double"))))
    >>> row_keys(b, pa.table({"b": [-0.0, None], "a": ["x:y", "%"]}))
    [b't:x%3Ay:0', b't:%25:%NULL']
    """
    keyed = one_zero(rows.select(list(binding.key)))
    parts: list[pa.Array | pa.Scalar] = []
    for name in binding.key:
        escaped = pc.replace_substring(pc.replace_substring(bare(keyed[name]), "%", "%25"), SEPARATOR, "%3A")
        parts.append(pc.fill_null(escaped, _NULL))
    joined = pc.binary_join_element_wise(*parts, SEPARATOR)
    whole = pc.binary_join_element_wise(pa.scalar(prefix(binding.resource)), joined, "")
    found: list[bytes] = whole.cast(pa.binary()).to_pylist()
    return found


def documents(binding: Binding, rows: pa.Table) -> list[bytes]:
    """Return each row as a JSON object."""
    found: list[bytes] = objects(rows, binding.schema.names).cast(pa.binary()).to_pylist()
    return found


def hashes(binding: Binding, rows: pa.Table) -> tuple[list[list[bytes]], list[bool]]:
    """Return the fields and values of each row in one list, as HSET takes them, and which rows have a NULL."""
    names = [name.encode() for name in binding.schema.names]
    texts = [bare(rows[name]).cast(pa.binary()).to_pylist() for name in binding.schema.names]
    fields, lacking = [], []
    for row in zip(*texts, strict=True):
        given = [part for name, text in zip(names, row, strict=True) if text is not None for part in (name, text)]
        fields.append(given or [EMPTY.encode(), b""])
        lacking.append(len(given) < 2 * len(names))
    return fields, lacking


def rows_of(binding: Binding, form: Form, kept: Sequence[Kept]) -> pa.Table:
    """Return rows as a table of the binding's columns.

    Raises `ProtocolViolation` if another program wrote there.
    """
    kinds = [parse(each.name, each.type) for each in binding.schema]
    found = [_json(each) if isinstance(each, bytes) else each for each in kept]
    return pa.table(
        [
            column(each.name, _values(form, each.name, kind, found), kind)
            for each, kind in zip(binding.schema, kinds, strict=True)
        ],
        names=list(binding.schema.names),
    )


def _json(kept: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(kept, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"what is kept under a key is no JSON object: {error}") from error


def _values(form: Form, name: str, kind: Type, kept: Iterable[Mapping[Any, Any]]) -> list[Any]:
    if form is Form.JSON:
        return [each.get(name) for each in kept]
    texts = (each.get(name.encode()) for each in kept)
    return [None if text is None else _read(kind, text.decode()) for text in texts]


def _read(kind: Type, text: str) -> Any:
    match kind:
        case Array() | Struct():
            return msgspec.json.decode(text)
        case Atom("boolean") if text in {"true", "false"}:
            return text == "true"
        case _:
            return text
