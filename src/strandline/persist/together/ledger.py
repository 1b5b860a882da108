"""The content of the transactions shard: registered shards, commits that are not yet tidied, and used tokens.

The ledger is a pure fold of the shard's records, and their order does not matter: a record is live while it was
inserted once more often than it was withdrawn.  So compaction may advance times and drop pairs, and everything that
must survive compaction is in the record itself.

    ["shard", id, schema]               the data shard takes part; withdrawn by forget
    ["token", token, time]              the transaction ``token`` is committed at ``time``; withdrawn when it expires
    ["write", shard, time, n, staged]   the n-th batch to append to ``shard`` at ``time``; withdrawn when it is applied

**Tokens.**  A token may say when it was made: ``name@time``.  The ledger keeps such a token for `TOKEN_LIFE_MS` after
that time, by the shard's own upper.  A commit that uses it later is refused, because the ledger no longer shows whether
the token was committed.  A token without a date never expires: the ledger keeps it for ever, so that the same token is
always the same commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from strandline.frontier.antichain import MINIMUM, Frontier, as_time
from strandline.persist.handles.records import Record
from strandline.persist.shard import codec
from strandline.persist.shard.batch import Staged

TOKEN_LIFE_MS: Final = 15 * 60_000
"""How long a dated token is kept after it was made: longer than any retry of a call is in flight."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed batch, which must be appended to ``shard`` at ``time``.  ``data`` is its record."""

    shard: str
    time: int
    staged: Staged
    data: bytes


class Ledger(msgspec.Struct, frozen=True):
    """The records that are live before ``upper``.  ``tokens``: commit time by token; ``writes``: commits by record."""

    upper: Frontier = MINIMUM
    shards: Mapping[str, str] = msgspec.field(default_factory=dict)
    tokens: Mapping[str, int] = msgspec.field(default_factory=dict)
    writes: Mapping[bytes, Committed] = msgspec.field(default_factory=dict)

    def after(self, records: Iterable[Record], upper: Frontier) -> Ledger:
        """Return the ledger up to ``upper``, given the records that came since this one."""
        net: dict[bytes, int] = {}
        for record in records:
            net[record.data] = net.get(record.data, 0) + record.diff
        shards, tokens, writes = dict(self.shards), dict(self.tokens), dict(self.writes)
        for data, count in sorted(net.items(), key=lambda item: item[1]):  # withdrawals first, then insertions
            if not count:
                continue
            assert abs(count) == 1, f"the count of a record of {len(data)} bytes changed by {count}"
            match _decoder.decode(data):
                case ["shard", shard, schema]:
                    _put(shards, shard, schema, count)
                case ["token", token, time]:
                    _put(tokens, token, time, count)
                case ["write", shard, time, _, staged]:
                    _put(writes, data, Committed(shard, time, codec.unpack_staged(staged), data), count)
        return Ledger(upper, shards, tokens, writes)

    def expired(self) -> list[bytes]:
        """Return the records of tokens that have expired."""
        return [token_record(t, time) for t, time in sorted(self.tokens.items()) if expires(t) <= as_time(self.upper)]

    def in_order(self) -> list[Committed]:
        """Return the writes in the order of their times, which is the order to apply them in."""
        return sorted(self.writes.values(), key=lambda w: (w.time, w.shard, w.data))


def shard_record(shard: str, schema: str) -> bytes:
    """Return the record that ``shard`` takes part."""
    return _encode(["shard", shard, schema])


def token_record(token: str, time: int) -> bytes:
    """Return the record that ``token`` is committed at ``time``."""
    return _encode(["token", token, time])


def write_record(shard: str, time: int, n: int, staged: Staged) -> bytes:
    """Return the record of the n-th batch that is committed to ``shard`` at ``time``."""
    return _encode(["write", shard, time, n, codec.pack_staged(staged)])


def expires(token: str) -> float:
    """Return the time at which a token expires; infinity if the token has no date.

    >>> expires("order-7@1700") == 1700 + TOKEN_LIFE_MS, expires("@5") == 5 + TOKEN_LIFE_MS
    (True, True)
    >>> expires("order-7"), expires("a@b")
    (inf, inf)
    """
    _, at, date = token.rpartition("@")
    return int(date) + TOKEN_LIFE_MS if at and date.isascii() and date.isdigit() else float("inf")


def _put(entries: dict[Any, Any], key: Any, value: Any, count: int) -> None:
    if count > 0:
        entries[key] = value
    else:
        del entries[key]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Any])
