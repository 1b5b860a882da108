"""Disagreements of replicas: two of them computed different contents of one shard from the same inputs.

One of the two is wrong, and neither can know which: who has commanded both finds out (`controller/asking`).
"""

from __future__ import annotations

import msgspec

from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier
from strandline.persist.shard.batch import Digest
from strandline.persist.shard.state import ShardState


class Disagreement(msgspec.Struct, frozen=True):
    """What a sink found when it lost a race for the times ``[lower, upper)`` of its shard.

    ``theirs`` and ``ours``: the digests of all that the shard holds before ``upper``, and of all that it would hold if
    this sink had been faster.  ``missing``: how many rows only theirs has; ``extra``: only ours; ``example``: one of
    them, as text.  They are 0 where the rows were not compared, or equal: then this sink has not staged what it meant
    to.  ``afresh``: before ``lower`` nothing vouched for the shard, so both had to recompute all of it.  ``audited``:
    this sink had done so anyway, since it disagreed before.  ``by``: the name of the writer that has appended
    ``[lower, upper)``; empty: more than one has, or it is not known.
    """

    lower: Frontier
    upper: Frontier
    theirs: Digest
    ours: Digest
    missing: int = 0
    extra: int = 0
    example: str = ""
    afresh: bool = False
    audited: bool = False
    by: str = ""


def writer_since(state: ShardState, lower: Frontier) -> str:
    """Return the name of the only writer that has appended to a shard beyond ``lower``; empty if there were more."""
    found = [name for name, writer in state.writers.items() if lower < writer.upper]
    return found[0] if len(found) == 1 else ""


def inexact(schema: Schema) -> bool:
    """Return whether rows may differ in their last digits, by the order in which Spark adds floats.

    >>> from strandline.algebra.schema import Column
    >>> inexact(Schema((Column("a", "array<double>"),))), inexact(Schema((Column("a", "decimal(10,2)"),)))
    (True, False)
    """
    return any("double" in column.type or "float" in column.type for column in schema)
