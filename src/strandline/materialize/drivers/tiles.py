"""Tiles: the key ranges whose checkpoints an endpoint keeps.  They never overlap.

A session takes its own range out of those that overlap it.  The rest of each of these stays, with the checkpoint that
it had.  So for each key there is one checkpoint, whichever splits a task has had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.errors import DefinitionError
from strandline.materialize.protocol.refusals import PARTED
from strandline.materialize.protocol.task import NOTHING, Checkpoint, KeyRange


def checkpoint_of(
    task: str, wanted: KeyRange, held: Mapping[KeyRange, Checkpoint], state_keys: Collection[str]
) -> Checkpoint:
    """Return the checkpoint of ``wanted``, given those of the ranges that overlap it.

    Raises `DefinitionError`: they disagree on one of ``state_keys``.  On others they may: those bindings are gone.
    """
    found = sorted(held.items(), key=lambda each: each[0].begin)
    checkpoints = {checkpoint for _, checkpoint in found}
    if left_of(wanted, held):
        checkpoints.add(NOTHING)
    agreed = Checkpoint.common(checkpoints)
    disputed = {key for each in checkpoints for key, _ in set(each.times) - set(agreed.times)}
    if disputed & set(state_keys):
        of = ", ".join(f"[{range_}] has {checkpoint.encode()}" for range_, checkpoint in found)
        raise DefinitionError(PARTED.said(item=task, wanted=wanted, of=of))
    return agreed


def left_of(range_: KeyRange, taken: Collection[KeyRange]) -> tuple[KeyRange, ...]:
    """Return the rest of a range without some others, which do not overlap each other.

    >>> [str(each) for each in left_of(KeyRange(0, 9), [KeyRange(2, 3), KeyRange(8, 12)])]
    ['00000000-00000001', '00000004-00000007']
    """
    left, begin = [], range_.begin
    for each in sorted(taken, key=lambda other: other.begin):
        if begin < each.begin <= range_.end:
            left.append(KeyRange(begin, each.begin - 1))
        begin = max(begin, each.end + 1)
    if begin <= range_.end:
        left.append(KeyRange(begin, range_.end))
    return tuple(left)
