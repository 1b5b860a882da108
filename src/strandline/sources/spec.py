"""Reclocking, as its definition says it: slow, obvious, and kept for ever for tests to compare with.

    target(t) = { u : binding(t) covers u, and no binding(t') with t' < t does }

So each source update gets at most one time, the first whose binding covers it (laws R2, R3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.frontier import Offsets

Message = tuple[str, int]
"""A source update, as far as its time depends on it: partition and offset."""


def target(bindings: Mapping[int, Offsets], time: int, updates: Iterable[Message]) -> list[Message]:
    """Return the updates that happen at ``time``, in the order given.

    >>> target({1: Offsets({"0": 2}), 5: Offsets({"0": 4})}, 5, [("0", 1), ("0", 2), ("0", 4)])
    [('0', 2)]
    """
    earlier = [offsets for t, offsets in bindings.items() if t < time]
    return [u for u in updates if bindings[time].covers(*u) and not any(offsets.covers(*u) for offsets in earlier)]
