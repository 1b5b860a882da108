"""What makes each transaction be stored once: marks of the keys that it has written, and a fence of each resource.

A transaction that was cut off is replayed, and reduces its rows with what is stored, which may be its own result
already.  So each key is marked in the same step (MULTI) in which it is written or deleted, and a replay leaves marked
keys as they are: it has the same changes, so what it would have stored is there.  The marks are a set for each resource
and key range, ``strandline:stored:…``, named after the transaction; it is dropped once the recovery log has committed
that.  Rows look as they do without marks.

A process that was presumed dead may wake with a transaction that others have replayed and followed up.  So there is a
hash for each resource, ``strandline:fence:…``, with the session of each key range.  A session that opens takes out all
ranges that overlap its own; whatever writes a row watches the hash, and is refused once its session is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strandline.errors import FencedError
from strandline.materialize.drivers.redis.left import SESSIONS
from strandline.materialize.drivers.redis.server import Command, Fence, Server
from strandline.materialize.drivers.redis.texts import pattern
from strandline.materialize.protocol.task import Binding, KeyRange
from strandline.store.system import SystemIds

STORED: Final = "strandline:stored"
FENCE: Final = "strandline:fence"
BEFORE_RANGE: Final = "\x1f"


@dataclass(frozen=True, slots=True)
class Marks:
    """The keys that one transaction, by its number, has written of a binding's resource."""

    key: bytes

    @staticmethod
    def of(binding: Binding, range_: KeyRange, transaction: int) -> Marks:
        """Return the marks of a transaction."""
        end = BEFORE_RANGE.join((binding.state_key, str(range_), str(transaction)))
        return Marks(f"{STORED}:{binding.resource}:{end}".encode())

    def mark(self, key: bytes) -> Command:
        """Return the command that marks a key."""
        return ("SADD", self.key, key)

    def marked(self, server: Server, keys: Sequence[bytes]) -> list[bool]:
        """Return which of ``keys`` are marked."""
        return [bool(found) for found in server.look([("SISMEMBER", self.key, key) for key in keys])]

    def any(self, server: Server) -> bool:
        """Return whether the transaction has written anything."""
        return bool(server.ask("EXISTS", self.key))

    def drop(self, server: Server) -> None:
        """Drop them."""
        server.ask("UNLINK", self.key)


def drop_all(server: Server, resource: str, fence: Fence) -> None:
    """Drop all marks of a resource that begins anew, as long as ``fence`` stands."""
    for keys in server.keys(pattern(f"{STORED}:{resource}")):
        server.change([(("UNLINK", key),) for key in keys], [fence])


def take(server: Server, binding: Binding, range_: KeyRange) -> Fence:
    """Take over a range of a resource: from now on no session can write that has a range in common with it."""
    key, field = f"{FENCE}:{binding.resource}".encode(), str(range_).encode()
    number = int(server.ask("INCR", SESSIONS))
    token = f"{number}-{SystemIds().fresh('session')}".encode()  # a server that lost power may count again from before
    fence = Fence(key, field, token, f"the keys {binding.resource}:*")

    def change(held: dict[bytes, bytes]) -> list[Command]:
        newer = [each for each in held if int(held[each].partition(b"-")[0]) > number and _overlap(each, field)]
        if newer:
            raise FencedError(f"{fence.what} of {server.name} were taken over by another session")
        taken: list[Command] = [("HDEL", key, each) for each in held if _overlap(each, field)]
        return [*taken, ("HSET", key, field, token)]

    server.exchange(key, change)
    return fence


def _overlap(one: bytes, other: bytes) -> bool:
    """Return whether two ranges, as texts, have a hash in common.

    >>> _overlap(b"00000000-7fffffff", b"7fffffff-ffffffff"), _overlap(b"00000000-7ffffffe", b"7fffffff-ffffffff")
    (True, False)
    """
    (begin, end), (other_begin, other_end) = one.split(b"-"), other.split(b"-")
    return begin <= other_end and other_begin <= end
