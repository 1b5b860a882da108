"""The rows that reads return: answers of queries, collections at one moment, and SHOW, DESCRIBE and EXPLAIN.

No Spark job is run for SHOW, DESCRIBE and EXPLAIN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.algebra.notation import within
from strandline.algebra.schema import Schema
from strandline.client.access import Access, T
from strandline.client.cancelling import Cancel, present
from strandline.controller.asking import reads
from strandline.controller.asking.status import live_counters
from strandline.controller.asking.verification import Committing, Verification, verify_endpoint
from strandline.controller.core import Core
from strandline.controller.defining.explaining import explain_view
from strandline.controller.defining.project.settings import Project
from strandline.controller.holding import Hold
from strandline.controller.introspection.listed import listed, schema_of, table
from strandline.controller.language import arguments, statements
from strandline.controller.language.showing import Show, Shown
from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier import Frontier
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.read import read_definitely
from strandline.plane import COMPUTES, READS, Query, at_stage, deploying, verifying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


async def shown(core: Core, statement: Show, as_of: int | None) -> pa.Table:
    """Return what a statement answers, as it is now.

    Raises `DefinitionError`, with its place, if there is nothing with the name that it says; `AsOfError` if a time is
    asked for: definitions have no history.
    """
    if as_of is not None:
        raise AsOfError(f"definitions have no history, so they cannot be shown at {as_of}: leave the time out")
    await core.look()
    if statement.what is not Shown.PLAN:
        return listed(statement, core.catalog)
    with within(statement.at):
        await core.remember()
        counted = await live_counters(core)
        explained = await core.assembly.planning(lambda: explain_view(core, statement.name, counted))
    return table(statement, [(line,) for line in str(explained).splitlines()])


async def shown_rows(core: Core, statement: Show, as_of: int | None) -> Rows:
    """Return what a statement answers, as rows that a frame is made of.  Raises as `shown`."""
    found = await shown(core, statement, as_of)
    rows = await core.engine.local(found, schema_of(statement), time=0, diff=1)
    return await core.engine.multiset(rows)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the answer to a query may have, and how long it may take; 0, and None: there is no bound."""

    bytes_max: int = 0
    rows_max: int = 0
    seconds: float | None = None


class Asking:
    """Answers queries, several at a time, beside whatever else goes on; each is listed until it is answered."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.held = asyncio.Lock()
        """What one call finds and holds, another would let go: so calls do that one at a time."""

    def answer(
        self, question: statements.Question, time: int | None, least: int, cancel: Cancel | None, bounds: Bounds
    ) -> tuple[pa.Table, int | None]:
        """See `Environment.answer`."""
        core, hold, ending = self._access.core, Hold(), present() if cancel is None else cancel
        if isinstance(question, Show):
            return self._access.wait(shown(core, question, time), ending), None

        async def collect(query: Query) -> tuple[pa.Table, int | None]:
            seconds = self._limit(bounds.seconds)
            waited = max(0, self._access.assembly.clock.now_ms() - query.since_ms) / 1000
            deadline = asyncio.timeout(None if seconds is None else max(0.0, seconds - waited))
            try:
                async with deadline:
                    at_stage(READS)
                    await core.look()
                    async with self.held:
                        asked = await reads.asked(core, question.text, time, hold, least, question.given)
                    found = await reads.answered(core, asked)
                    at_stage(COMPUTES)
                    rows = await core.engine.collect(found.rows, bounds.bytes_max, bounds.rows_max)
                    return rows, found.as_of
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                raise InvalidUsage(
                    f"the query was cancelled after {seconds:g} s: ask for less, or give it more time (its own timeout "
                    "and query_limit_s in strandline.yml say how much it has)"
                ) from error
            finally:
                hold.give_back()

        with core.queries.asked(question.text, ending) as query:
            return self._access.wait(collect(query), ending)

    def planned(self, project: Project, call: Coroutine[Any, Any, T], *, apply: bool) -> T:
        """Make a call that tries a project, to ``apply`` it or to plan that; it is listed, and ends, as a query."""
        ending = present()
        with self._access.core.queries.asked(deploying(project.root.name, apply=apply), ending):
            return self._access.wait(call, ending)

    def verified(self, name: str, make: Callable[[], Coroutine[Any, Any, T]], *, alone: bool = False) -> T:
        """Make a call that computes what ``name`` should hold; it is listed as a query is, and ends as one.

        It goes on beside all other calls; ``alone``: none is made meanwhile, and no tick.
        """
        core, ending = self._access.core, present()

        async def compare() -> T:
            await core.look()
            at_stage(COMPUTES)
            return await make()

        with core.queries.asked(verifying(name), ending):
            return self._access.computed(compare, cancel=ending) if alone else self._access.wait(compare(), ending)

    def endpoint_verified(self, name: str) -> Verification:
        """See `verified`: compare a materialization; alone, if one transaction is committed after the other."""
        compare = partial(verify_endpoint, self._access.core, name)
        try:
            return self.verified(name, compare)
        except Committing:
            return self.verified(name, compare, alone=True)

    def _limit(self, seconds: float | None) -> float | None:
        """Return how many seconds a query has, of which its caller gives it ``seconds``; None: there is no limit."""
        given = [each for each in (seconds, self._access.core.config.query_limit_s or None) if each is not None]
        return min(given, default=None)


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
