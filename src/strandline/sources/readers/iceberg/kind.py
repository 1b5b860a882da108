"""The entry of the Iceberg reader in the registry.

Its client library takes long to import, so it is imported when a source is opened.

Source: design page "sources" (iceberg).
"""

from __future__ import annotations

from typing import Final

from strandline.sources.reader import ReaderKind, SourceReader, Surroundings
from strandline.sources.readers.iceberg.options import IcebergOptions


async def _open(options: IcebergOptions, given: Surroundings) -> SourceReader:
    from strandline.sources.readers.iceberg.reader import IcebergReader
    from strandline.sources.readers.iceberg.table import StoredTable

    shard = await given.progress()
    return IcebergReader(StoredTable(options), given.engine, given.decoder, given.schema, shard, given.epoch)


KIND: Final = ReaderKind("iceberg", IcebergOptions, _open)
