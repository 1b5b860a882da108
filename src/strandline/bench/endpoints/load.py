"""What `strandline bench materialize` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Endpoint(Enum):
    """What can be measured."""

    POSTGRES = "postgres"
    DUCKDB = "duckdb"
    DELTA = "delta"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class Load:
    """How much is done: ``rows`` in ``transactions``, in each of ``rounds``; ``drain`` rows, or none.

    Rows come for ``seconds`` at ``rate`` a second, after ``warm_seconds`` that do not count, or not at all.
    ``splits``: rows are written once more, by so many.
    """

    rows: int
    transactions: int
    rounds: int
    drain: int = 0
    seconds: float = 0.0
    rate: int = 200
    warm_seconds: float = 20.0
    splits: int = 1
