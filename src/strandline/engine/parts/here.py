"""Parts read in this process, without Spark: each is checked, and is a table."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from strandline.algebra.schema import DIFF, TIME
from strandline.engine.frames import inline
from strandline.engine.parts.part_store import Parts
from strandline.errors import CorruptionError
from strandline.persist.handles.contents import Contents, Half
from strandline.persist.shard.batch import BlobPart, InlinePart, Part


def tables(store: Parts, contents: Contents) -> Iterator[pa.Table]:
    """Yield the updates of ``contents``, part by part, read and checked here; first none, for the columns."""
    target = inline.update_schema(contents.schema)
    yield inline.select(target.empty_table(), half=contents.half, lower=0, upper=0, advance=0)
    for part in (part for batch in contents.batches for part in batch.parts):
        shown = contents.through(part.window)
        if shown is not None:
            stored = _stored(store, contents, part, target)
            yield inline.select(stored, half=shown.half, lower=shown.lower, upper=shown.upper, advance=shown.advance)


def verified(store: Parts, contents: Contents) -> int:
    """See `Merger.verify`."""
    return sum(pc.sum(table[DIFF]).as_py() or 0 for table in tables(store, replace(contents, half=Half.BOTH)))


def _stored(store: Parts, contents: Contents, part: Part, target: pa.Schema) -> pa.Table:
    if isinstance(part, InlinePart):
        return inline.decode(contents.shard, part, contents.schema)
    return _loaded(store, part, target)


def _loaded(store: Parts, part: BlobPart, target: pa.Schema) -> pa.Table:
    store.check(part)
    table = inline.conform(store.load(part), target)
    if table[TIME].null_count or table[DIFF].null_count:
        raise CorruptionError(f"part {part.key} holds updates without a time or a diff")
    return table
