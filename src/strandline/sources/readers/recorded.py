"""What a reader notes once, for ever: when a generator began, which table it is that a source reads.

The first instance that notes it wins; all others, and every later incarnation, get what it noted.  It is one record at
time 0 of the reader's own record shard.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from strandline.errors import CorruptionError
from strandline.frontier.antichain import MINIMUM, Frontier
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch

T = TypeVar("T", bound=msgspec.Struct)


async def noted(shard: RecordShard, kind: type[T]) -> T | None:
    """Return what was noted in ``shard``, or None.

    Raises `CorruptionError` if it holds anything else.
    """
    await shard.refresh()
    records = await shard.contents()
    if not records:
        return None
    try:
        (only,) = records
        return msgspec.json.decode(only.data, type=kind)
    except (ValueError, msgspec.DecodeError) as error:
        raise CorruptionError(f"record shard {shard.shard!r} does not hold one {kind.__name__}: {error}") from error


async def note(shard: RecordShard, epoch: int, value: T) -> T:
    """Note ``value`` in ``shard`` (opened under ``epoch``), unless something was noted before; return what is noted.

    Raises:
        FencedError: a newer epoch has taken over.
        Indeterminate: it may be noted; ask again.
    """
    while (there := await noted(shard, type(value))) is None:
        record = Record(msgspec.json.encode(value), 0, 1)
        match await shard.append([record], MINIMUM, Frontier(1)):
            case Appended():
                return value
            case UpperMismatch():
                continue
            case Fenced() as outcome:
                raise fenced(shard.shard, outcome, epoch)
    return there
