"""What comes of a subscription: some updates, or that all before a time have come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Updates:
    """Some updates: the collection's columns, ``__time`` and ``__diff``.

    Of the contents at the beginning, ``__time`` is the time at which they were read.
    """

    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Progress:
    """Every update before ``upper`` has come; None: the collection is closed, so there are no more."""

    upper: int | None


Event: TypeAlias = Updates | Progress
