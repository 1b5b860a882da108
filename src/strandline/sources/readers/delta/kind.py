"""The entry of the Delta reader in the registry.

Its client library takes long to import, so it is imported when a source is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from strandline import extras
from strandline.sources.kinds import Discovered, Discovery, discovered
from strandline.sources.reader import ReaderKind, SourceReader, Surroundings, side_by_side
from strandline.sources.readers.delta.log import DeltaOptions
from strandline.sources.readers.recorded import noted
from strandline.sources.readers.tabular import Lacking, declarable, require_fitting


async def _open(options: DeltaOptions, given: Surroundings) -> SourceReader:
    from strandline.sources.readers.delta.reader import DeltaReader
    from strandline.sources.readers.delta.table import StoredTable

    shard = await given.progress()
    return DeltaReader(
        StoredTable(options, given.name),
        given.engine,
        given.decoder,
        given.schema,
        shard,
        given.epoch,
        Lacking(given),
    )


async def _ask_wider(options: DeltaOptions, given: Surroundings) -> None:
    from strandline.sources.readers.delta.reader import Known
    from strandline.sources.readers.delta.table import StoredTable

    known, table = await noted(await given.progress(), Known), StoredTable(options, given.name)
    if known is not None and (new := known.columns.new(given.schema)).columns:
        snapshot = await asyncio.to_thread(table.newest)
        require_fitting(table.name, new, pa.schema(snapshot.table.schema().to_arrow()))


async def _find(options: DeltaOptions) -> Sequence[Discovered]:
    """Return the one table that is at the path: no catalog says what others there are."""
    from strandline.sources.readers.delta.table import StoredTable, columns_of, refusal

    name = options.path.rstrip("/").rpartition("/")[2]
    snapshot = await asyncio.to_thread(StoredTable(options, name).newest)
    there = pa.schema(snapshot.table.schema().to_arrow())
    refused = refusal(snapshot.protocol)
    found = [] if refused else declarable(there, lambda schema: columns_of(schema, snapshot.metadata))
    return [discovered(name, found, {"path": options.path}, [f"version {snapshot.version}", *filter(None, [refused])])]


KIND: Final = ReaderKind(
    "delta",
    DeltaOptions,
    _open,
    ask_wider=_ask_wider,
    discovery=Discovery(DeltaOptions, _find, (extras.DELTA,)),
    shared=side_by_side,
    needs=lambda _: (extras.DELTA,),
    counts="versions",
)
