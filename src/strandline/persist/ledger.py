"""What the transactions shard says: who takes part, what is committed and not yet tidied, which tokens were used.

A pure fold of the shard's records, whose order does not matter: a record is live while it was put there once more often
than it was withdrawn.  So compaction may advance times and drop pairs; whatever must survive it stands in the record.

    ["shard", id, schema]               the data shard takes part; withdrawn by forget
    ["token", token, time]              the transaction ``token`` is committed at ``time``; withdrawn when it expires
    ["write", shard, time, n, staged]   the n-th batch to append to ``shard`` at ``time``; withdrawn when it is applied

**Tokens.**  A token may say when it was made: ``name@time``.  Such a one is remembered for `TOKEN_LIFE_MS` after that,
by the shard's own upper; whoever comes with it later is refused, since nobody knows any more whether it was committed.
A token without a date never expires: the same word must be the same commit for ever, so it is remembered for ever.

Source: design page "persist" (transactions).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from strandline.frontier.antichain import MINIMUM, Frontier, as_time
from strandline.persist import codec
from strandline.persist.batch import Staged
from strandline.persist.records import Record

TOKEN_LIFE_MS: Final = 15 * 60_000
"""How long after it was made a dated token is remembered: longer than any retry of a call is in flight."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch that is committed: to be appended to ``shard`` at ``time``.  ``data`` is its record."""

    shard: str
    time: int
    staged: Staged
    data: bytes


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is live before ``upper``.  ``tokens``: when each was committed; ``writes``: by their record."""

    upper: Frontier = MINIMUM
    shards: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[bytes, Committed] = field(default_factory=dict)

    def after(self, records: Iterable[Record], upper: Frontier) -> Ledger:
        """Return the ledger up to ``upper``, given the records that came since this one."""
        net: dict[bytes, int] = {}
        for record in records:
            net[record.data] = net.get(record.data, 0) + record.diff
        shards, tokens, writes = dict(self.shards), dict(self.tokens), dict(self.writes)
        for data, count in sorted(net.items(), key=lambda item: item[1]):  # first what goes, then what comes
            if not count:
                continue
            assert abs(count) == 1, f"a record of {len(data)} bytes is there {count} times more"
            match _decoder.decode(data):
                case ["shard", shard, schema]:
                    _put(shards, shard, schema, count)
                case ["token", token, time]:
                    _put(tokens, token, time, count)
                case ["write", shard, time, _, staged]:
                    _put(writes, data, Committed(shard, time, codec.unpack_staged(staged), data), count)
        return Ledger(upper, shards, tokens, writes)

    def expired(self) -> list[bytes]:
        """Return the records of tokens that need not be remembered any more."""
        return [token_record(t, time) for t, time in sorted(self.tokens.items()) if expires(t) <= as_time(self.upper)]

    def in_order(self) -> list[Committed]:
        """Return the writes in the order of their times: in which they must be applied."""
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
    """Return the time from which on a token may be forgotten; infinity if it does not say when it was made.

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
