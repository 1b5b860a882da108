"""What a reader notes: when a generator began, which table it is that a source reads.

The first instance that notes it wins; all others, and every later incarnation, get what it noted.  It is a record at
time 0 of the reader's own record shard.  What is noted in its place is a record at the next time.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from strandline.errors import CorruptionError
from strandline.frontier import Frontier, as_time
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch

T = TypeVar("T", bound=msgspec.Struct)


async def noted(shard: RecordShard, kind: type[T]) -> T | None:
    """Return what was noted in ``shard`` last, or None.

    Raises `CorruptionError` if that is anything else.
    """
    await shard.refresh()
    records = await shard.contents()
    if not records:
        return None
    try:
        return msgspec.json.decode(max(records, key=lambda record: record.time).data, type=kind)
    except (ValueError, msgspec.DecodeError) as error:
        raise CorruptionError(f"record shard {shard.shard!r} does not hold a {kind.__name__}: {error}") from error


async def note(shard: RecordShard, epoch: int, value: T) -> T:
    """Note ``value`` in ``shard`` (opened under ``epoch``), unless something was noted before; return what is noted.

    Raises:
        FencedError: a newer epoch has taken over.
        Indeterminate: it may be noted; ask again.
    """
    there = await noted(shard, type(value))
    return await amended(shard, epoch, value) if there is None else there


async def amended(shard: RecordShard, epoch: int, value: T) -> T:
    """Note ``value`` in place of what is noted, as last read; return what is noted then, by another instance perhaps.

    Raises as `note`.
    """
    at = as_time(shard.upper)
    match await shard.append([Record(msgspec.json.encode(value), at, 1)], Frontier(at), Frontier(at + 1)):
        case Appended():
            return value
        case UpperMismatch():
            there = await noted(shard, type(value))
            assert there is not None, "another instance has noted it"
            return there
        case Fenced() as outcome:
            raise fenced(shard.shard, outcome, epoch)
