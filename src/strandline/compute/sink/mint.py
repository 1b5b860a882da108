"""Mint: which batch is to be appended next.

A batch description is ``(lower, upper)``.  It is minted from the frontier of *desired* (how far the dataflow has
computed) and the upper of the shard itself.  Lowers strictly increase and uppers never decrease, so at most one
description is valid at a time, and no sink has to keep state for an older one (law K1).

Edges: an empty desired frontier (the dataflow is done) mints a description with the empty upper, which seals the shard;
a shard whose upper is empty is done and mints nothing; a shard that is ahead of desired mints nothing until desired has
passed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.frontier.antichain import Frontier


@dataclass(frozen=True, slots=True)
class Description:
    """The batch to append: it begins at the shard's upper and reaches to where desired is known."""

    lower: int
    upper: Frontier

    def __post_init__(self) -> None:
        assert not self.upper <= Frontier(self.lower), f"empty description [{self.lower}, {self.upper})"


def mint(*, allowed: bool, desired: Frontier, shard: Frontier, last_lower: int | None) -> Description | None:
    """Return the next description, or None if there is nothing to append.

    >>> mint(allowed=True, desired=Frontier(5), shard=Frontier(3), last_lower=None)
    Description(lower=3, upper=Frontier(at=5))
    >>> mint(allowed=True, desired=Frontier(5), shard=Frontier(3), last_lower=3) is None  # that one was minted already
    True
    >>> mint(allowed=True, desired=Frontier(5), shard=Frontier(7), last_lower=3) is None  # the shard is ahead
    True
    >>> mint(allowed=True, desired=Frontier(None), shard=Frontier(7), last_lower=3).upper.empty  # done: seal
    True
    >>> mint(allowed=True, desired=Frontier(None), shard=Frontier(None), last_lower=3) is None
    True
    >>> mint(allowed=False, desired=Frontier(5), shard=Frontier(3), last_lower=None) is None  # read-only
    True
    """
    if not allowed or shard.at is None or desired <= shard:
        return None
    if last_lower is not None and shard.at <= last_lower:
        return None
    return Description(shard.at, desired)
