"""The entry of the Iceberg reader in the registry.

Its client library takes long to import, so it is imported when a source is opened, or a catalog is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from strandline import extras
from strandline.connections.lake import IcebergCatalog
from strandline.sources.kinds import ConnectionKind, Discovered, Discovery
from strandline.sources.reader import ReaderKind, SourceReader, Surroundings, side_by_side
from strandline.sources.readers.iceberg.options import IcebergLooked, IcebergOptions
from strandline.sources.readers.recorded import noted
from strandline.sources.readers.tabular import Lacking, require_fitting


async def _open(options: IcebergOptions, given: Surroundings) -> SourceReader:
    from strandline.sources.readers.iceberg.reader import IcebergReader
    from strandline.sources.readers.iceberg.table import StoredTable

    shard = await given.progress()
    return IcebergReader(
        StoredTable(options, given.name),
        given.engine,
        given.decoder,
        given.schema,
        shard,
        given.epoch,
        Lacking(given),
    )


async def _ask_wider(options: IcebergOptions, given: Surroundings) -> None:
    from strandline.sources.readers.iceberg.reader import Known
    from strandline.sources.readers.iceberg.table import StoredTable

    known, table = await noted(await given.progress(), Known), StoredTable(options, given.name)
    if known is not None and (new := known.read.new(given.schema)).columns:
        await asyncio.to_thread(table.load)
        require_fitting(table.name, new, table.schema)


async def _find(options: IcebergLooked) -> Sequence[Discovered]:
    from strandline.sources.readers.iceberg.table import find

    return await find(options)


KIND: Final = ReaderKind(
    "iceberg",
    IcebergOptions,
    _open,
    connections={"connection": ConnectionKind("iceberg", IcebergCatalog)},
    ask_wider=_ask_wider,
    discovery=Discovery(IcebergLooked, _find, (extras.ICEBERG,)),
    shared=side_by_side,
    needs=lambda _: (extras.ICEBERG,),
    counts="snapshots",
)
