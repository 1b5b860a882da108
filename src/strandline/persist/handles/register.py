"""Registers: one small durable value under a Consensus key, changed by compare-and-set.

A register keeps what is a value and not a collection: the catalog, the names, a task's recovery log.  Every change
carries a fresh token, so that after an unknown outcome the writer recognises its own version.  Old versions are
truncated regularly.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import msgspec

from strandline.errors import CorruptionError, Indeterminate, StoreError, Unavailable
from strandline.persist.shard.patience import ATTEMPTS_MAX, PATIENCE_S, Deadline
from strandline.store.clock import Clock, Ids
from strandline.store.consensus import Committed, CompareAndSet, Consensus, Versioned
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
