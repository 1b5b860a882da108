"""Reading during garbage collection: a read returns the right rows or raises `AsOfError`.

`Contents` are planned from a version of the shard, and read a moment later.  A reader without a hold may find a part
missing: its batch was merged into another one, and the part was collected.  Then the newest state says where the same
rows are now, or that since has passed the reader's time.

If the newest state names the part and it is still missing or damaged, that is corruption, and the read raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from strandline.errors import AsOfError, CorruptionError
from strandline.persist.handles.contents import Contents, Reads, Rows
from strandline.persist.handles.read import ReadHandle

T = TypeVar("T")
REPLANS_MAX: Final = 8
"""How often a reader may be overtaken by compaction and collection before it gives up."""


async def read_definitely(
    engine: Reads, handle: ReadHandle, plan: Callable[[], Awaitable[Contents]]
) -> tuple[Contents, Rows]:
    """Return the contents that ``plan`` (a call of ``handle``) plans, with their rows; see `definitely`."""
    return await definitely(handle, plan, engine.read)


async def definitely(
    handle: ReadHandle, plan: Callable[[], Awaitable[Contents]], read: Callable[[Contents], Awaitable[T]]
) -> tuple[Contents, T]:
    """Return the contents that ``plan`` (a call of ``handle``) plans, with what ``read`` finds; plan anew if overtaken.

    Raises:
        AsOfError: the time is no longer readable; or compaction overtook every attempt.
        CorruptionError: a part that the newest state names is missing or damaged.
    """
    wanted = await plan()
    for _ in range(REPLANS_MAX):
        try:
            return wanted, await read(wanted)
        except CorruptionError:
            handle.release(wanted)
            await handle.refresh()
            again = await plan()
            if again.batches == wanted.batches:
                handle.release(again)
                handle.metrics.corruption_errors += 1
                raise
            wanted = again
    handle.release(wanted)
    raise AsOfError(
        f"{handle.name!r} was compacted and collected {REPLANS_MAX} times while it was read without a hold; "
        "read it under a lease"
    )
