"""Source gauges: how far a source has been read, as next offsets by partition.

``Offsets({p: n})`` covers the messages of partition ``p`` with offset ``< n``; a partition that is absent is at 0.
Offsets form a lattice (join = maximum by partition); two of them may be incomparable, and ``<=`` is then false both
ways.  They are values: hashable, and equal iff they cover the same messages, with or without explicit zeros.

`strandline/sources/reclock.py` assigns times to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, init=False)
class Offsets:
    """Next offset by partition.

    >>> Offsets({"0": 3}) <= Offsets({"0": 3, "1": 1}), Offsets({"0": 3}) <= Offsets({"1": 9})
    (True, False)
    >>> Offsets({"0": 0}) == Offsets(), Offsets({"0": 4}).covers("0", 3), Offsets({"0": 4}).covers("0", 4)
    (True, True, False)
    """

    entries: tuple[tuple[str, int], ...]

    def __init__(self, offsets: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> None:
        entries = tuple(sorted((p, n) for p, n in dict(offsets).items() if n))
        if any(n < 0 for _, n in entries):
            raise ValueError(f"negative offset in {entries}")
        object.__setattr__(self, "entries", entries)

    def __getitem__(self, partition: str) -> int:
        return dict(self.entries).get(partition, 0)

    def covers(self, partition: str, offset: int) -> bool:
        """Return whether the message at ``offset`` of ``partition`` is before this frontier."""
        return offset < self[partition]

    def __le__(self, other: Offsets) -> bool:
        there = dict(other.entries)
        return all(n <= there.get(p, 0) for p, n in self.entries)

    def join(self, other: Offsets) -> Offsets:
        """Return the least offsets that cover all messages that either one covers.

        >>> Offsets({"0": 3, "1": 1}).join(Offsets({"1": 2})).entries
        (('0', 3), ('1', 2))
        """
        merged = dict(self.entries)
        for partition, offset in other.entries:
            merged[partition] = max(offset, merged.get(partition, 0))
        return Offsets(merged)

    def meet(self, other: Offsets) -> Offsets:
        """Return the greatest offsets that both cover.

        >>> Offsets({"0": 3, "1": 1}).meet(Offsets({"1": 2})).entries
        (('1', 1),)
        """
        return Offsets({p: min(n, other[p]) for p, n in self.entries})

    def messages_since(self, earlier: Offsets) -> int:
        """Count the offsets from ``earlier`` up to here (an upper bound on messages: offsets may have gaps)."""
        return sum(max(0, n - earlier[p]) for p, n in self.entries)
