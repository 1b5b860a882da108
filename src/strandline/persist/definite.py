"""Reading while others collect: the right rows, or `AsOfError`, and never anything else.

`Contents` are planned from a version of the shard, and read a moment later.  Whoever holds nothing may find that a part
is gone meanwhile: its batch was merged into another one, and garbage was collected.  Then the newest state says where
the same rows are now, or that they can no longer be told apart from earlier ones.

A part that the newest state names, and that is missing or damaged all the same, is corruption: that is not mended here.

Source: design page "persist" (modes: a missing part means refetch the state).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from strandline.errors import AsOfError, CorruptionError
from strandline.persist.plane import Contents, Rows
from strandline.persist.read import ReadHandle

REPLANS_MAX: Final = 8
"""How often a reader may be overtaken by compaction and collection before it gives up."""


class Reads(Protocol):
    """The part of `Engine` that is needed here."""

    async def read(self, contents: Contents) -> Rows:
        """See `Engine.read`."""
        ...


async def read_definitely(
    engine: Reads, handle: ReadHandle, plan: Callable[[], Awaitable[Contents]]
) -> tuple[Contents, Rows]:
    """Return what ``plan`` (a call of ``handle``) names, with its rows; planned anew if it was overtaken.

    Raises:
        AsOfError: it cannot be read any more; or it was overtaken again and again.
        CorruptionError: a part that the newest state names is missing or damaged.
    """
    wanted = await plan()
    for _ in range(REPLANS_MAX):
        try:
            return wanted, await engine.read(wanted)
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
