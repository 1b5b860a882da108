"""The contents of a collection of an environment over lists, as tests compare them."""

from __future__ import annotations

from strandline.controller.asking.reads import latest, snapshot
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.testing.lists.list_engine import listed
from strandline.testing.simulation.kernel import run_sync


def contents(core: Core, name: str, at: int | None = None) -> dict[str, int]:
    """What a collection holds at a time (default: the last), row by row."""

    async def read() -> dict[str, int]:
        reader = await core.readers.of(name)
        time = await latest(core, [reader]) if at is None else at
        found: dict[str, int] = {}
        for row in listed(await snapshot(core, reader, time, Hold())).rows:
            key = str({k: v for k, v in row.items() if not k.startswith("__")})
            found[key] = found.get(key, 0) + row["__diff"]
        return {key: count for key, count in found.items() if count}

    return run_sync(read())
