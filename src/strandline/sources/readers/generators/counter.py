"""The counter: each event is one more row, with the number of the event, from 1 on.

CREATE SOURCE ticks (n BIGINT) USING counter OPTIONS (every '100ms', keep '1000')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.options import COUNT, option
from strandline.sources.readers.generators.reader import LoadOptions, kind_of

_COUNTER: Final = Schema((Column("counter", "bigint"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterOptions(LoadOptions):
    """How the counter counts."""

    keep: int | None = option(COUNT, "Only the newest so many rows stay; without it all of them stay.", default=None)

    def __post_init__(self) -> None:
        """Raise `ValueError` if nothing would ever come, or ever stay."""
        LoadOptions.__post_init__(self)
        if self.keep == 0:
            raise ValueError("keep is 0: then no row ever stays")


@dataclass(frozen=True, slots=True)
class Counter:
    """See `Load`."""

    kept: int | None
    tables: ClassVar[Mapping[str, Schema]] = {"": _COUNTER}

    def rows(self, table: str, first: int, last: int, begun_ms: int) -> pa.Table:
        """See `Load.rows`."""
        return pa.table({"counter": pa.array(np.arange(first + 1, last + 1, dtype=np.int64))})


KIND: Final = kind_of("counter", CounterOptions, lambda options: Counter(options.keep), tables=False)
