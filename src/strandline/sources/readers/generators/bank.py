"""The bank: accounts, and transfers between them, each of two rows whose amounts add up to 0.

    CREATE SOURCE bank FROM BANK (every = '10ms', accounts = '100')
    CREATE TABLE accounts (id BIGINT, owner STRING) FROM SOURCE bank (REFERENCE 'accounts')
    CREATE TABLE transfers (id BIGINT, account BIGINT, amount BIGINT) FROM SOURCE bank (REFERENCE 'transfers')

All accounts come with the first event.  Event n is the transfer n, from 1 on: one row takes an amount from an account,
the other gives it to another one.  So the sum of all amounts is 0 at every time, and a reader that sees another sum has
seen a part of a transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.options import COUNT, option
from strandline.sources.readers.generators.reader import LoadOptions, below, kind_of

AMOUNT_MAX: Final = 1_000
_TABLES: Final[Mapping[str, Schema]] = {
    "accounts": Schema((Column("id", "bigint"), Column("owner", "string"))),
    "transfers": Schema((Column("id", "bigint"), Column("account", "bigint"), Column("amount", "bigint"))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BankOptions(LoadOptions):
    """How large the bank is."""

    accounts: int = option(COUNT, "How many accounts there are.", default="100")

    def __post_init__(self) -> None:
        """Raise `ValueError` if nothing would ever come, or there is no other account to give to."""
        LoadOptions.__post_init__(self)
        if self.accounts < 2:
            raise ValueError(f"accounts is {self.accounts}: a transfer needs two")


@dataclass(frozen=True, slots=True)
class Bank:
    """See `Load`."""

    seed: int
    accounts: int
    tables: ClassVar[Mapping[str, Schema]] = _TABLES
    kept: ClassVar[None] = None

    def rows(self, table: str, first: int, last: int, begun_ms: int) -> pa.Table:
        """See `Load.rows`."""
        if table == "accounts":
            ids = np.arange(self.accounts if first == 0 < last else 0, dtype=np.int64)
            return pa.table({"id": ids, "owner": pa.array([f"owner {n}" for n in ids.tolist()], pa.string())})
        events = np.arange(first, last, dtype=np.int64)
        giver = below(self.seed, "giver", events, self.accounts)
        taker = (giver + 1 + below(self.seed, "taker", events, self.accounts - 1)) % self.accounts
        amount = 1 + below(self.seed, "amount", events, AMOUNT_MAX)
        return pa.table(
            {
                "id": np.concatenate([events + 1, events + 1]),
                "account": np.concatenate([giver, taker]),
                "amount": np.concatenate([-amount, amount]),
            }
        )


KIND: Final = kind_of("bank", BankOptions, lambda options: Bank(options.seed, options.accounts))
