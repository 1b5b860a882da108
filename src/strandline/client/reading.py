"""Collections at the moment they were asked for, and their readings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from strandline.algebra.schema import Schema
from strandline.client.access import Access
from strandline.controller.asking import reads
from strandline.controller.holding import Hold
from strandline.controller.language import arguments
from strandline.frontier.antichain import Frontier
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.definite import read_definitely

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Collection:
    """A table, source or view at the moment it was asked for; its readings are Spark DataFrames."""

    name: str
    schema: Schema
    since: int | None
    upper: int | None
    _access: Access

    def __repr__(self) -> str:
        times = "closed: no time changes" if self.upper is None else f"times {self.since} to before {self.upper}"
        return f"<Collection {self.name} ({self.schema.ddl}): {times}>"

    def snapshot(self, as_of: int | None = None) -> DataFrame:
        """Return the contents at ``as_of`` (default: the latest complete time)."""
        time, hold = arguments.maybe_time(as_of, "as_of"), Hold()
        core = self._access.core

        async def read() -> Rows:
            reader = await core.readers.holding(self.name)
            at = time if time is not None else await reads.latest(core, [reader])
            return await core.engine.multiset(await reads.snapshot(core, reader, at, hold))

        return self._access.hand_out(self._access.run(read()), hold)

    def changes(self, lower: int, upper: int) -> DataFrame:
        """Return the updates with ``lower <= time < upper``: the columns, ``__time`` and ``__diff``.

        Raises `AsOfError` where they are no longer known, or not yet; `InvalidUsage` if ``lower > upper``.
        """
        lower, upper = arguments.window(lower, upper)
        core, hold = self._access.core, Hold()

        async def read() -> Rows:
            reader = await core.readers.holding(self.name)
            whole = Frontier(lower) == reader.since
            plan = partial(reader.history, upper) if whole else partial(reader.changes, lower, upper)
            contents, rows = await read_definitely(core.engine, reader, plan)
            hold.take(reader, contents)
            await reads.refuse_changes(core, reader, lower, upper)
            return rows

        return self._access.hand_out(self._access.run(read()), hold)
