"""The auction house: people register, put things up for auction, and bid.

    CREATE SOURCE house FROM AUCTION (every = '10ms')
    CREATE TABLE bids (id BIGINT, buyer BIGINT, auction BIGINT, amount INT, bid_time TIMESTAMP)
        FROM SOURCE house (REFERENCE 'bids')

Of ten events the first is a new user, the second an auction by one of the users there are, and the others are bids of
theirs on one of the newest auctions.  So the users and the auction that a row names were there before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.sources.readers.generators.reader import Integers, LoadOptions, below, kind_of

ROUND: Final = 10
"""A round of events: a user, an auction, and bids."""
BIDS: Final = ROUND - 2
OPEN_AUCTIONS: Final = 4
"""So many auctions are bid on at a time."""
AMOUNT_MAX: Final = 100
ITEMS: Final = ("signed memorabilia", "city bar crawl", "best pizza in town", "gift basket", "custom art")
_TABLES: Final[Mapping[str, Schema]] = {
    "users": Schema((Column("id", "bigint"), Column("name", "string"))),
    "auctions": Schema(
        (Column("id", "bigint"), Column("seller", "bigint"), Column("item", "string"), Column("end_time", "timestamp"))
    ),
    "bids": Schema(
        (
            *(Column("id", "bigint"), Column("buyer", "bigint"), Column("auction", "bigint")),
            *(Column("amount", "int"), Column("bid_time", "timestamp")),
        )
    ),
}


@dataclass(frozen=True, slots=True)
class Auction:
    """See `Load`.  Ids count from 0 in each table."""

    seed: int
    every_ms: int
    batch: int
    tables: ClassVar[Mapping[str, Schema]] = _TABLES
    kept: ClassVar[None] = None

    def rows(self, table: str, first: int, last: int, begun_ms: int) -> pa.Table:
        """See `Load.rows`."""
        events = np.arange(first, last, dtype=np.int64)
        rounds, place = np.divmod(events, ROUND)
        match table:
            case "users":
                return self._users(rounds[place == 0])
            case "auctions":
                return self._auctions(events[place == 1], rounds[place == 1], begun_ms)
            case _:
                return self._bids(events[place > 1], rounds[place > 1], begun_ms)

    def _users(self, ids: Integers) -> pa.Table:
        return pa.table({"id": ids, "name": pa.array([f"user {n}" for n in ids.tolist()], pa.string())})

    def _auctions(self, events: Integers, ids: Integers, begun_ms: int) -> pa.Table:
        item = below(self.seed, "item", events, len(ITEMS))
        return pa.table(
            {
                "id": ids,
                "seller": below(self.seed, "seller", events, ids + 1),
                "item": pa.array([ITEMS[n] for n in item.tolist()], pa.string()),
                "end_time": self._at(events + ROUND * OPEN_AUCTIONS, begun_ms),
            }
        )

    def _bids(self, events: Integers, rounds: Integers, begun_ms: int) -> pa.Table:
        back = below(self.seed, "auction", events, np.minimum(rounds + 1, OPEN_AUCTIONS))
        return pa.table(
            {
                "id": rounds * BIDS + events % ROUND - (ROUND - BIDS),
                "buyer": below(self.seed, "buyer", events, rounds + 1),
                "auction": rounds - back,
                "amount": (1 + below(self.seed, "amount", events, AMOUNT_MAX)).astype(np.int32),
                "bid_time": self._at(events, begun_ms),
            }
        )

    def _at(self, events: Integers, begun_ms: int) -> pa.Array:
        """Return when each event happens: at the end of its interval."""
        happens_ms = begun_ms + (events // self.batch + 1) * self.every_ms
        return pa.array(happens_ms * 1_000, pa.timestamp("us", "UTC"))


KIND: Final = kind_of("auction", LoadOptions, lambda options: Auction(options.seed, options.every, options.batch))
