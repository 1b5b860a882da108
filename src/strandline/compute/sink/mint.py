"""Mint: which batch is to be appended next.

A batch description is ``(lower, upper)``.  It is minted from the frontier of *desired* (how far the dataflow has
computed) and the upper of the shard itself.  `mint` is the definition, and `Mint` remembers what a sink has minted,
also while the sink is opened again.  Its law, K1, is asserted at each description:

1. Lowers strictly increase.  The last lower is minted again only if its description was given up and the shard has not
   moved since: an append whose outcome stayed unknown has then not happened.  If it happens later after all, the
   shard's own compare-and-set lets one of the two in.
2. Uppers never decrease.  Where desired itself begins anew, at a certificate or an audit, they begin anew with it.
3. One description is valid at a time: the next is minted only once the last was appended, lost, or given up.  So no
   sink keeps state for an older one.

Edges: an empty desired frontier (the dataflow is done) mints a description with the empty upper, which seals the shard;
a shard whose upper is empty is done and mints nothing; a shard that is ahead of desired mints nothing until desired has
passed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.frontier.antichain import MINIMUM, Frontier


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


@dataclass
class Mint:
    """What one sink has minted for its shard: the last description, and what became of it.

    >>> mint = Mint()
    >>> mint.next(allowed=True, desired=Frontier(5), shard=Frontier(3))
    Description(lower=3, upper=Frontier(at=5))
    >>> mint.give_up()  # the append failed, and the shard was opened again: it has not moved
    >>> mint.next(allowed=True, desired=Frontier(4), shard=Frontier(3))
    Description(lower=3, upper=Frontier(at=4))
    >>> mint.settle(Frontier(4))
    >>> mint.next(allowed=True, desired=Frontier(4), shard=Frontier(4)) is None
    True
    """

    last: Description | None = None
    valid: bool = False
    """Whether the last description may still be appended."""
    given_up: bool = False
    """Whether the last description was given up, so that its lower may be minted again."""
    desired: Frontier = MINIMUM
    """The last desired frontier since desired began anew: no later upper is before it."""

    def next(self, *, allowed: bool, desired: Frontier, shard: Frontier) -> Description | None:
        """Return what `mint` says, and remember it.  Raises `AssertionError` if law K1 would be broken."""
        last = self.last
        assert not self.valid, f"law K1 (one description is valid at a time) is broken: {last} is"
        assert last is None or Frontier(last.lower) <= shard, (
            f"law K1 (lowers strictly increase) is broken: {last} was minted, and the shard is at {shard}"
        )
        assert self.desired <= desired, (
            f"law K1 (uppers never decrease) is broken: {desired} is desired after {self.desired}"
        )
        self.desired = desired
        last_lower = None if last is None or self.given_up else last.lower
        found = mint(allowed=allowed, desired=desired, shard=shard, last_lower=last_lower)
        if found is not None:
            self.last, self.valid, self.given_up = found, True, False
        return found

    def settle(self, shard: Frontier) -> None:
        """Note that the last description was appended, or lost to another writer: ``shard`` is the upper now."""
        assert self.valid, f"law K1 (one description is valid at a time) is broken: {self.last} is settled twice"
        assert self.last is not None
        assert not shard <= Frontier(self.last.lower), (
            f"law K1 (lowers strictly increase) is broken: {self.last} is settled, and the shard is at {shard}"
        )
        self.valid = False

    def give_up(self) -> None:
        """Note that the shard was opened again: a description that is still valid is given up, and desired begins anew.

        Its append has not happened if the shard is where it was, and its lower may be minted again.
        """
        self.given_up |= self.valid
        self.valid = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Note that desired begins anew, perhaps at an earlier time than it had come to."""
        self.desired = MINIMUM
