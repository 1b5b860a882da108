"""The entry of the Delta reader in the registry.

Its client library takes long to import, so it is imported when a source is opened.

Source: design page "sources" (delta).
"""

from __future__ import annotations

from typing import Final

from strandline.sources.reader import ReaderKind, SourceReader, Surroundings
from strandline.sources.readers.delta.options import DeltaOptions


async def _open(options: DeltaOptions, given: Surroundings) -> SourceReader:
    from strandline.sources.readers.delta.reader import DeltaReader
    from strandline.sources.readers.delta.table import StoredTable

    shard = await given.progress()
    return DeltaReader(StoredTable(options), given.engine, given.decoder, given.schema, shard, given.epoch)


KIND: Final = ReaderKind("delta", DeltaOptions, _open)
