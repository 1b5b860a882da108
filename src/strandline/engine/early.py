"""Early answers: what an engine can say of parts before Spark is started.

Damage is looked for, and errors are counted, by reading the parts in this process.  Each call answers as the engine's
call of the same name; None: only Spark can, or better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from strandline.engine.frames.rows import Local, unwrap, wrap
from strandline.engine.parts import part_store
from strandline.engine.parts.part_store import Parts
from strandline.engine.parts.scan import may_be_few
from strandline.engine.sql import error_half
from strandline.persist.handles.contents import Contents, Half, Rows
from strandline.persist.shard.batch import BlobPart
from strandline.plane import Errors


@dataclass(frozen=True, slots=True)
class Early:
    """Answers about the parts in ``store``."""

    store: Parts

    async def verify(self, contents: Contents) -> int | None:
        """See `Merger.verify`."""
        return await asyncio.to_thread(part_store.verified, self.store, contents)

    async def read(self, contents: Contents) -> Rows | None:
        """See `Reads.read`: few errors are read here."""
        parts = [part for batch in contents.batches for part in batch.parts if isinstance(part, BlobPart)]
        if contents.half is not Half.ERR or contents.net or not may_be_few(contents, parts):
            return None
        tables = await asyncio.to_thread(lambda: list(part_store.tables(self.store, contents)))
        return wrap(Local(pa.concat_tables(tables), contents.plain))

    async def errors(self, rows: Rows, *, of: str | None = None) -> Errors | None:
        """See `Reading.errors`."""
        frame = unwrap(rows)
        return error_half.tally(frame, of) if isinstance(frame, Local) else None

    async def weights(self, rows: Rows) -> Mapping[int, int] | None:
        """See `Reading.weights`."""
        frame = unwrap(rows)
        return error_half.weights_here(frame) if isinstance(frame, Local) else None
