"""The envelope of keyed records: what the collection holds of their keys goes, and the newest record of each comes.

Its state is the source's own shard.  The rows of the keys are looked up there, so a step costs what it changes and not
what is there; only where a look-up is not the better way, a part of the shard is read, or all of it.

The errors of the shard are read whole: they are few, or the source needs attention before speed.

What it means: `sources/envelopes/keyed_spec.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from strandline.algebra.keyed import check_key
from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier, as_time
from strandline.persist.handles.contents import Contents, Half, Rows
from strandline.persist.handles.read import contents, erring
from strandline.plane.enveloping import Enveloping
from strandline.sources.envelopes.envelope import HeldState
from strandline.sources.reclock import Slice

PRUNE_ROWS_MIN: Final = 100_000
"""Fewer rows than this are read whole: to ask for the bounds of the keys takes as long."""


class NewestByKey:
    """Each record is what its key has from its time on.  See `Envelope`.

    A step takes any number of bindings: what each time sees before it is held, or is among the step's own records.
    """

    by_binding = False
    settled = False

    def __init__(self, schema: Schema, key: Sequence[str], engine: Enveloping, held: HeldState) -> None:
        """Raise `DefinitionError` if ``key`` cannot be the key of rows of ``schema``."""
        check_key(schema, key)
        self._schema = schema
        self._key = tuple(key)
        self._engine = engine
        self._held = held

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """See `Envelope.updates`."""
        before = contents(self._held.state, self._schema, 0, as_time(lower), advance=slices[0].time)
        held = await self._of_keys(before, rows) if before.batches else None
        return await self._engine.keyed(rows, held, await self._errors(before), self._schema, self._key)

    async def _of_keys(self, before: Contents, rows: Rows) -> Rows:
        """Return the updates of ``before`` that have a key of ``rows``, and perhaps others."""
        found = await self._engine.lookup(before, self._key, [(rows, self._key)], nulls=True)
        if found is None and before.rows >= PRUNE_ROWS_MIN and all(b.sort[:1] == self._key[:1] for b in before.batches):
            found = await self._engine.prune(before, self._key[0], [(rows, self._key[0])], nulls=True)
        return await self._engine.read(before) if found is None else found

    async def _errors(self, before: Contents) -> Rows | None:
        """Return the updates of the errors of ``before``; None if there are none for sure."""
        held = replace(erring(before), half=Half.ERR, here=True)
        return await self._engine.read(held) if held.batches else None
