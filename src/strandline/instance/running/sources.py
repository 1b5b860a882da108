"""The sources of an instance, and the sealing of its tables: a loop for each.

A turn of a source binds a time to what upstream has now, and makes durable what is bound.  A source whose upstream is
silent, or that reads for minutes, keeps nothing else from going on: a caller that wants all of them at a time waits as
long as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from strandline.compute.tick import SideBySide
from strandline.instance.commands import Advance, Output, RunIngestion
from strandline.instance.error_half import ErrorBudgets
from strandline.instance.loop import Loop, bring
from strandline.instance.problems import Problems
from strandline.persist.shard.patience import Deadline
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.persist.together.transactions import Transactions
from strandline.sources.ingest import Ingestion
from strandline.store.clock import Beside


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source that is open here."""

    command: RunIngestion
    ingestion: Ingestion
    loop: Loop

    def item(self, table: str) -> str:
        """Return the name of the item that an output is: of the source itself, unless it feeds tables."""
        name = self.command.name.lower()
        return next((out.collection.name.lower() for out in self.outputs if out.table == table), name)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What it feeds."""
        return self.command.outputs


@dataclass
class Sources:
    """The sources that are open.  ``late`` is called when one has come to an aim later than its caller waited."""

    beside: Beside
    together: SideBySide
    problems: Problems
    budgets: ErrorBudgets
    transactions: Transactions | None
    late: Callable[[], None]
    open: dict[str, OpenSource] = field(default_factory=dict)
    """By the source's name."""
    _aim: Advance | None = None
    _missed: set[str] = field(default_factory=set)  # those that are later than their caller waited

    def __post_init__(self) -> None:
        self._sealing = Loop(self.beside, self._seal)

    def add(self, name: str, command: RunIngestion, ingestion: Ingestion) -> None:
        """Have a source come to each aim from now on."""
        self.open[name] = OpenSource(command, ingestion, Loop(self.beside, lambda: self._turn(name)))

    async def stop(self, name: str) -> None:
        """End a source.  Raises what its upstream raises."""
        source = self.open.pop(name, None)
        if source is not None:
            await source.loop.end()
            await source.ingestion.close()

    async def halt(self) -> None:
        """End all turns."""
        for source in self.open.values():
            await source.loop.end()
        await self._sealing.end()

    async def close(self) -> None:
        """End all that holds a connection.  Raises what an upstream raises, once all are ended."""
        async with AsyncExitStack() as ending:
            for name in list(self.open):
                ending.push_async_callback(self.stop, name)

    async def bring(self, aim: Advance, deadline: Deadline | None) -> None:
        """Bring all sources to ``aim``, and seal the tables through it; return when they are there, or at the deadline.

        Raises `FencedError` if a newer epoch has taken over.
        """
        self._aim = aim
        loops = {name: source.loop for name, source in self.open.items()}
        if self.transactions is not None:
            loops[TRANSACTIONS] = self._sealing
        self._missed.clear()
        self._missed |= await bring(loops, deadline)

    async def idle(self) -> bool:
        """Return whether all sources, which rest, have all that upstream has."""
        answers: list[bool] = []

        async def asked(source: OpenSource) -> None:
            answers.append(await source.ingestion.idle())

        await self.together([asked(source) for source in self.open.values()])
        return all(answers)

    @property
    def sealing(self) -> bool:
        """Whether tables are on their way to the last aim."""
        return not self._sealing.resting

    def under_way(self) -> Iterator[str]:
        """Yield the names of the items of sources that are on their way to the last aim."""
        for source in self.open.values():
            if not source.loop.resting:
                yield from (source.item(table) for table in source.ingestion.tables)

    async def sealed(self) -> None:
        """Return when no sealing is under way: transactions are used by one coroutine at a time."""
        await self._sealing.idle()

    async def at_rest(self, name: str) -> Ingestion:
        """Return the ingestion of a source when no turn of it is under way."""
        source = self.open[name]
        await source.loop.idle()
        return source.ingestion

    def feeding(self, item: str) -> tuple[str, str] | None:
        """Return the source that feeds an item, and what its upstream calls it; None if no source does."""
        for name, source in self.open.items():
            for table in source.ingestion.tables:
                if source.item(table) == item:
                    return name, table
        return None

    async def _turn(self, name: str) -> None:
        aim, source = self._aim, self.open[name]
        assert aim is not None, "a source is woken for an aim"
        async with self.problems.of(name):
            exceeded = await self.budgets.exceeded(source.outputs)
            if not exceeded:
                await source.ingestion.tick(aim.time, wait=aim.wait)
            if aim.step:
                await self.together([self._step(name, source, table) for table in source.ingestion.tables])
            self.problems.note(name, exceeded or source.ingestion.status.stalled)
        self._arrived(name, aim)

    async def _step(self, name: str, source: OpenSource, table: str) -> None:
        """Let an output catch up: one that is an item of its own has problems of its own."""
        item = source.item(table)
        if item == name:
            await source.ingestion.catch_up(table)
            return
        async with self.problems.of(item):
            await source.ingestion.catch_up(table)
            self.problems.note(item, source.ingestion.status.outputs[table].stalled)

    async def _seal(self) -> None:
        aim = self._aim
        assert aim is not None, "tables are sealed for an aim"
        async with self.problems.of(TRANSACTIONS):
            assert self.transactions is not None, "an instance that is brought to times has transactions"
            await self.transactions.advance(aim.time)
            self.problems.note(TRANSACTIONS, "")
        self._arrived(TRANSACTIONS, aim)

    def _arrived(self, name: str, aim: Advance) -> None:
        """Have a source be followed that has come to an aim, unless the caller waits for that."""
        if name in self._missed:
            if aim is self._aim:  # else it was brought to another one meanwhile
                self._missed.discard(name)
            self.late()
