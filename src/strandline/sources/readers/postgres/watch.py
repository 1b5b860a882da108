"""A look at upstream: note what a restart must know of it, and make the slot if it was never made."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from strandline.errors import Unavailable
from strandline.sources.readers.postgres import slot
from strandline.sources.readers.postgres.ledger import Ledger, SlotNote
from strandline.sources.readers.postgres.options import table_name
from strandline.sources.readers.postgres.server import Name, Server, SlotStanding, Standing


class Watch:
    """The looks of one source at its server."""

    def __init__(self, server: Server, ledger: Ledger, slot_name: str, publication: str, item: str) -> None:
        """``item``: the source's name, for what messages advise."""
        self.item = item
        self._server = server
        self._ledger = ledger
        self._slot = slot_name
        self._publication = publication

    async def look(self, tables: Collection[str], read: int) -> tuple[Standing, SlotStanding]:
        """Return how upstream and the slot stand.

        Raises `SourceError`: nothing can be read as they stand, or the server lost log before ``read``.  What is wrong
        with one of the ``tables`` alone is noted in the ledger.
        """
        names = [*map(table_name, tables)]
        standing = await self._server.standing(names)
        if self._ledger.slot is None or not self._ledger.slot.made:
            await self._ledger.refresh()  # after the server was asked: a slot of ours that it has is noted by now
        slot.check(standing, names, self._ledger.slot, self._slot, self._publication, self.item)
        slot.check_log(standing, read, self.item)
        if self._ledger.slot is None or not self._ledger.slot.made:
            standing = await self._made(standing, names)
        assert standing.slot is not None
        for note in [self._ledger.tables.get(table) for table in tables]:
            if note is not None and note.declared:
                await self._ledger.write(slot.followed(note, standing, self._publication))
        return standing, standing.slot

    async def _made(self, standing: Standing, tables: Collection[Name]) -> Standing:
        """Make the slot, and note it before and after: one that is there and was not noted is another's."""
        note = SlotNote(self._slot, standing.system, standing.database, made=False)
        await self._ledger.write(note)
        if standing.slot is None or not standing.slot.whole:
            await self._server.create_slot()
            standing = await self._server.standing(tables)
            slot.check(standing, [], note, self._slot, self._publication, self.item)
        if standing.slot is None:
            raise Unavailable(f"replication slot {self._slot!r} was made and is gone; it is made again")
        if not standing.slot.whole:
            raise Unavailable(
                f"replication slot {self._slot!r} is being made by another session, perhaps of a process that ended: "
                "that waits for transactions that run there"
            )
        await self._ledger.write(structs.replace(note, made=True))
        return standing
