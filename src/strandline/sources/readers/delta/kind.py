"""The entry of the Delta reader in the registry.

Its client library takes long to import, so it is imported when a source is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from strandline.sources import sampled
from strandline.sources.kinds import Discovered, Discovery
from strandline.sources.reader import ReaderKind, SourceReader, Surroundings
from strandline.sources.readers.delta.options import DeltaOptions


async def _open(options: DeltaOptions, given: Surroundings) -> SourceReader:
    from strandline.sources.readers.delta.reader import DeltaReader
    from strandline.sources.readers.delta.table import StoredTable

    shard = await given.progress()
    return DeltaReader(StoredTable(options), given.engine, given.decoder, given.schema, shard, given.epoch)


async def _find(options: DeltaOptions) -> Sequence[Discovered]:
    """Return the one table that is at the path: no catalog says what others there are."""
    from strandline.sources.readers.delta.table import StoredTable

    snapshot = await asyncio.to_thread(StoredTable(options).newest)
    columns = sampled.columns(pa.schema(snapshot.table.schema().to_arrow()))
    note = f"version {snapshot.version}"
    return [Discovered(options.path.rstrip("/").rpartition("/")[2], columns, {"path": options.path}, note)]


KIND: Final = ReaderKind("delta", DeltaOptions, _open, discovery=Discovery(DeltaOptions, _find))
