"""The keys of a shard's objects in Blob: a key alone shows what an object is and when it was begun.

    <shard>/parts/<ms>-<id>/…       the parts of one batch; <ms>: when it was begun, by the shard's walltime
    <shard>/rollup/<seqno>-<id>     a rollup
    <shard>/doomed/<ms>-<id>        a list of objects that nothing names now, to be deleted at <ms>
    scratch./<ms>-<id>/…            rows that a process has put aside; no shard's segment has a point

A key is never reused.
"""

from __future__ import annotations

from strandline.store.keys import segment


def shard_prefix(shard: str) -> str:
    """Return the prefix of all keys of a shard."""
    return f"{segment(shard)}/"


def parts_prefix(shard: str) -> str:
    """Return the prefix of the keys of a shard's parts."""
    return f"{segment(shard)}/parts/"


def rollups_prefix(shard: str) -> str:
    """Return the prefix of the keys of a shard's rollups."""
    return f"{segment(shard)}/rollup/"


def doomed_prefix(shard: str) -> str:
    """Return the prefix of the keys of a shard's lists of doomed objects."""
    return f"{segment(shard)}/doomed/"


def scratch_prefix() -> str:
    """Return the prefix of the keys of what processes have put aside: of no shard, and of use to its writer alone."""
    return "scratch./"


def named_time(prefix: str, key: str) -> int | None:
    """Return the number in ``key`` right after ``prefix``: a time, or a rollup's seqno; None if there is none.

    >>> named_time("s/parts/", "s/parts/1700-b-7/part.parquet"), named_time("s/parts/", "s/parts/7/x")
    (1700, None)
    """
    number, dash, _ = key.removeprefix(prefix).partition("-")
    return int(number) if key.startswith(prefix) and dash and number.isascii() and number.isdigit() else None
