"""Registers: one small durable value under a Consensus key, changed by compare-and-set.

A register keeps what is a value and not a collection: the catalog, the names, a task's recovery log.  Every change
carries a fresh token, so that after an unknown outcome the writer recognises its own version.  Old versions are
truncated regularly.

`Names` is one of them: the shard, codec and schema of each named collection of a location.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import msgspec

from strandline.errors import CorruptionError, Indeterminate, InvalidUsage, StoreError, Unavailable
from strandline.persist.shard.patience import ATTEMPTS_MAX, PATIENCE_S, Deadline
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Committed, CompareAndSet, Consensus, Versioned
from strandline.store.seal import Kind, refuse_future, seal, unseal, version_key

RETRIES_MAX: Final = ATTEMPTS_MAX
KEEP_VERSIONS: Final = 64
"""At least this many versions are kept, so that a writer in doubt finds its own; at most twice as many."""


class Register:
    """The value under ``key``: bytes, or None before the first write.  ``kind`` is what its versions are sealed as."""

    def __init__(self, key: str, clock: Clock, ids: Ids, consensus: Consensus, *, kind: Kind = Kind.REGISTER) -> None:
        self.key = key
        self._kind = kind
        self._clock = clock
        self._ids = ids
        self._consensus = consensus

    async def read(self) -> bytes | None:
        """Return the newest value."""
        _, body = await self._head()
        return body

    async def update(self, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace the value by ``change(value)`` and return the new one.

        A change to None (or an exception) leaves the value alone.  ``change`` is evaluated anew when another process
        was faster.  Raises `Indeterminate` if the last attempt may still land.
        """
        for _ in range(RETRIES_MAX):
            seqno, body = await self._head()
            wanted = change(body)
            if wanted is None:
                return body
            new = 0 if seqno is None else seqno + 1
            token = self._ids.fresh("t")
            data = seal(self._kind, version_key(self.key, new), msgspec.msgpack.encode((token, wanted)))
            if await self._install(CompareAndSet(self.key, seqno, Versioned(new, data)), token):
                await self._forget(new)
                return wanted
        raise Unavailable(f"register {self.key!r}: no change in {RETRIES_MAX} attempts; too many writers at once")

    async def _install(self, request: CompareAndSet, token: str) -> bool:
        """Send one version until its outcome is known; return whether it is in the history."""
        unknown: StoreError | None = None
        patience = Deadline(self._clock, PATIENCE_S)
        for attempt in range(RETRIES_MAX):
            try:
                if isinstance(await self._consensus.compare_and_set(request), Committed):
                    return True
                # The seqno is taken: for ever by another, or by an earlier attempt of ours whose answer was lost.
                return unknown is not None and await self._is_ours(request.new.seqno, token)
            except StoreError as error:
                unknown = error if isinstance(error, Indeterminate) else unknown
                if not await patience.pause(attempt):
                    break
        if unknown is not None:
            raise Indeterminate(f"register {self.key!r}: a change may or may not have happened ({unknown})")
        raise Unavailable(f"register {self.key!r}: Consensus refuses; try again later")

    async def _forget(self, seqno: int) -> None:
        if seqno and seqno % KEEP_VERSIONS == 0:
            with suppress(StoreError):  # housekeeping: the next change truncates more
                await self._consensus.truncate(self.key, seqno - KEEP_VERSIONS + 1)

    async def _is_ours(self, seqno: int, token: str) -> bool:
        versions = await self._consensus.scan(self.key, seqno, 1)
        if not versions or versions[0].seqno != seqno:
            raise Indeterminate(f"register {self.key!r}: version {seqno} is truncated, so its writer is not known")
        return self._decode(versions[0])[0] == token

    async def _head(self) -> tuple[int | None, bytes | None]:
        last: StoreError | None = None
        patience = Deadline(self._clock, PATIENCE_S)
        for attempt in range(RETRIES_MAX):
            try:
                head = await self._consensus.head(self.key)
            except StoreError as error:
                last = error
                if not await patience.pause(attempt):
                    break
            else:
                return (None, None) if head is None else (head.seqno, self._decode(head)[1])
        raise Unavailable(f"register {self.key!r} cannot be read ({last}): try again later")

    def _decode(self, version: Versioned) -> tuple[str, bytes]:
        return _decoder.decode(unseal(self._kind, version_key(self.key, version.seqno), version.data))


class _Formatted(msgspec.Struct):
    format: int = 1


def refuse_future_json(what: str, body: bytes, known: int) -> None:
    """Call `refuse_future` on ``what``, JSON that carries its ``format``."""
    # The caller decodes the value next, and reports one that is no such value at all.
    with suppress(msgspec.MsgspecError):
        refuse_future(what, _formats.decode(body).format, known)


class Formatted(Protocol):
    """A value that says in which format it was written."""

    @property
    def format(self) -> int:
        """The format."""
        ...


F = TypeVar("F", bound=Formatted)


def decode_json(what: str, body: bytes, decoder: msgspec.json.Decoder[F], known: int) -> F:
    """Return ``what``, JSON that carries its ``format``.

    Raises `ConfigError` if it was written in a newer format than ``known``, `CorruptionError` if it is no such value.
    """
    try:
        found = decoder.decode(body)
    except msgspec.DecodeError as error:
        refuse_future_json(f"{what} is kept", body, known)
        raise CorruptionError(f"{what} cannot be read by this version of strandline: {error}") from error
    refuse_future(f"{what} is kept", found.format, known)
    return found


_decoder = msgspec.msgpack.Decoder(tuple[str, bytes])
_formats = msgspec.json.Decoder(_Formatted)


KEY: Final = "names"
OWNERS: Final = frozenset({"stream", "multi"})
"""The owners of the shards named here: streams, and collections that programs write together."""
FORMAT: Final = 1


class Named(msgspec.Struct, frozen=True):
    """What a name means.  ``codec`` says how rows become bytes; ``schema`` describes the rows in the codec's words."""

    shard: str
    codec: str
    schema: str


class _Names(msgspec.Struct, frozen=True):
    """``dropped``: shards whose name was dropped and that are not closed yet."""

    format: int = FORMAT
    names: dict[str, Named] = {}
    dropped: tuple[str, ...] = ()


_names_decoder = msgspec.json.Decoder(_Names)
_encode = msgspec.json.Encoder().encode


class Names:
    """The names of a location, kept in ``register`` (its key is `KEY`).

    All names are in one register, and every change is a compare-and-set of the whole register, so two processes that
    create one name at once get the same shard.  A shard's id is fresh: a name that is dropped and created again means
    another collection, and a process that still has the old one open sees nothing of the new one.

    A name may be any text.  Paths contain the shard's id (`store.protocols.segment`), never the name.

    Warning: this register is for collections that programs name (streams).  The environment's catalog, another
    register, names the objects that SQL defines.
    """

    def __init__(self, register: Register, ids: Ids) -> None:
        self._register = register
        self._ids = ids

    async def create_or_load(self, name: str, *, codec: str, schema: str) -> Named:
        """Return what ``name`` means; if it means nothing yet, a fresh shard.

        Raises:
            InvalidUsage: it was created with another codec or schema.
            Indeterminate: it may or may not have been created; ask again.
        """
        known = await self.load(name, codec=codec, schema=schema)
        if known is None:
            known = (await self._change(name, None, Named(self._ids.fresh("s"), codec, schema)))[name]
            _refuse_another(name, known, codec, schema)
        return known

    async def load(self, name: str, *, codec: str, schema: str) -> Named | None:
        """Return what ``name`` means; None: nothing.  Raises `InvalidUsage` as `create_or_load`."""
        known = (await self._read()).names.get(name)
        if known is not None:
            _refuse_another(name, known, codec, schema)
        return known

    async def drop(self, name: str, meant: Named, *, closed: bool) -> None:
        """Drop ``name`` if it still means ``meant``; a collection created since under the same name stays.

        Unless its shard is ``closed`` already, `dropped` lists it until `closed` is called for it.
        """
        await self._change(name, meant, None, left=() if closed else (meant.shard,))

    async def dropped(self) -> frozenset[str]:
        """Return the shards that were dropped and are not closed yet, for example because a process died in between."""
        return frozenset((await self._read()).dropped)

    async def closed(self, shard: str) -> None:
        """Record that ``shard``, which was dropped, is closed."""

        def step(body: bytes | None) -> bytes | None:
            before = _decode(body)
            left = tuple(other for other in before.dropped if other != shard)
            return None if left == before.dropped else _encode(msgspec.structs.replace(before, dropped=left))

        await self._register.update(step)

    async def all(self) -> dict[str, Named]:
        """Return all names, in the order of their names."""
        return dict(sorted((await self._read()).names.items()))

    async def _read(self) -> _Names:
        return _decode(await self._register.read())

    async def _change(
        self, name: str, was: Named | None, to: Named | None, *, left: tuple[str, ...] = ()
    ) -> dict[str, Named]:
        def step(body: bytes | None) -> bytes | None:
            before = _decode(body)
            names = dict(before.names)
            if names.get(name) != was:
                return None  # another process was faster, or our own change landed and its answer was lost
            names.pop(name, None)
            if to is not None:
                names[name] = to
            return _encode(_Names(names=names, dropped=(*before.dropped, *left)))

        return _decode(await self._register.update(step)).names


def _refuse_another(name: str, known: Named, codec: str, schema: str) -> None:
    if (known.codec, known.schema) != (codec, schema):
        raise InvalidUsage(
            f"{name!r} holds {known.schema!r} in codec {known.codec!r}; it cannot be opened as {schema!r} in {codec!r}"
        )


def _decode(body: bytes | None) -> _Names:
    if body is None:
        return _Names()
    refuse_future_json("the names are kept", body, FORMAT)
    try:
        return _names_decoder.decode(body)
    except msgspec.ValidationError as error:
        raise CorruptionError(f"the names cannot be read by this version of strandline: {error}") from error
