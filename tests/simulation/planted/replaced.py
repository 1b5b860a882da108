"""Bugs that are planted in how a view gets another query.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.controller import writing
from strandline.controller.location.version import succeeded
from strandline.controller.writing import Writing

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


@bug("a new query is put in place before it has caught up", (Writing, "_caught_up"))
async def too_early(self: Writing, names: Any) -> bool:
    """Wait for nothing."""
    return True


@bug("a view with other columns can be read at times at which what reads it is of before", (writing, "succeeded"))
def begun_before(catalog: Any, names: Any, begins: int = 0) -> Any:
    """Let all of its own history be read."""
    return succeeded(catalog, names)
