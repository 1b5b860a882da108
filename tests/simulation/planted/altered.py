"""Bugs that are planted in how a table gets columns.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Final

from planted.bugs import Bug, registrar
from strandline.persist.handles.write import WriteHandle

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


@bug("the shard of a table keeps the columns that the table was created with", (WriteHandle, "evolve"))
async def never_wider(self: WriteHandle, schema: str) -> None:
    """Leave the shard as it is."""
