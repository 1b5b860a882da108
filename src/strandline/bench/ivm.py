"""`strandline bench ivm`: the 22 TPC-H-derived views under changes, beside plain Spark that recomputes them.

The queries are those of the specification with its validation parameters, as views: an ORDER BY that only arranges what
is shown is left out, and one with LIMIT is kept, made total where it was not (``tpch/queries``).  The tables are those
of an environment; each change is one transaction (`tpch.contents`).  First the views are taken one by one: defined,
computed, ticked under changes, dropped.  Then all of them are there at once.  After each tick every view is compared
with what plain Spark says of the same contents, the measured recompute (`contents.Peer`).  Of a few views, taken
one by one, Spark's own declarative pipeline is a second peer (`tpch.pipeline`).

A view that is wrong, stands still or cannot be defined is named in the document with what is wrong; the others go on.
"""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from strandline.bench.measured import Edit, Measured, Tick, opened
from strandline.bench.tpch.contents import TABLES, Contents, Peer, columns, differences
from strandline.bench.tpch.pipeline import Pipeline, Refreshes
from strandline.bench.tpch.spread import Spread
from strandline.controller.defining.explaining import explain_view
from strandline.errors import StrandlineError, reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATIOS: Final = (0.67, 1, 5, 20)
PIPELINED: Final = ("q3", "q6")
"""The views that a pipeline refreshes as well, unless others are named: one that joins, groups and takes the first ten,
and one that adds up a single table, of which little is left to save."""


def queries() -> dict[str, str]:
    """Return the query of each view, by its name.

    >>> len(queries()), queries()["q6"][:39]
    (22, 'SELECT sum(l_extendedprice * l_discount')
    """
    folder = resources.files("strandline.bench.tpch") / "queries"
    return {f"q{number}": (folder / f"q{number}.sql").read_text() for number in range(1, 23)}


def tables_of(queries: Iterable[str]) -> set[str]:
    """Return the tables that ``queries`` name.

    >>> sorted(tables_of(["SELECT max(p_size) FROM part", "SELECT n_name FROM nation, region"]))
    ['nation', 'part', 'region']
    """
    return set(TABLES).intersection(re.findall(r"\w+", " ".join(queries)))


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: which views over the tables that they read, over how much data, changed how.

    ``change``: the share of the orders that changes before each tick.  ``warm``: so many ticks come before the
    ``ticks`` that count; plans and classes are made in them, on both sides.  ``pipeline``: which of the views Spark's
    declarative pipeline refreshes as well, while they are measured one by one.
    """

    views: tuple[str, ...] = tuple(f"q{number}" for number in range(1, 23))
    scale: float = 0.1
    change: float = 0.001
    spread: Spread = Spread.UNIFORM
    ticks: int = 5
    warm: int = 4
    one_by_one: bool = True
    together: bool = True
    pipeline: tuple[str, ...] = ()


def pipelined(views: Sequence[str]) -> tuple[str, ...]:
    """Return which two of ``views`` a pipeline refreshes if none are named: those of `PIPELINED`, else the first ones.

    >>> pipelined(["q1", "q3", "q6"]), pipelined(["q4", "q6"]), pipelined(["q1"])
    (('q3', 'q6'), ('q6', 'q4'), ('q1',))
    """
    preferred = [name for name in PIPELINED if name in views]
    return tuple(dict.fromkeys([*preferred, *views]))[: len(PIPELINED)]


def maintain(
    session: SparkSession, directory: Path, load: Load, note: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """Measure in ``directory`` and return every figure; ``note`` is called with each as soon as it is known.

    ``views``: of each ``tick_ms`` and ``recompute_ms`` (medians), ``ratio`` (recompute ÷ tick), ``hydrate_ms``, jobs,
    waves and compiled classes per tick, how many rows it has, why any of it is recomputed, and what was ``wrong``.  Of
    those that a pipeline refreshes also ``pipeline_ms`` (median), ``pipeline_ratio`` (that ÷ tick), ``pipeline_run_ms``
    and ``pipeline_wrong`` (`tpch.pipeline`).  ``pipeline_left_out``: why there is no pipeline, if it could not be had.
    ``ratios``: how many views have at least each of `RATIOS`.  ``together``: the same for all in one environment;
    their recompute is the sum.  ``commit_ms``: committing a change to the tables.
    """
    return asyncio.run(_Run(session, directory, load, note).measured())


@dataclass
class _Seen:
    """What was measured of one view, or of all together."""

    ticks: list[Tick] = field(default_factory=list)
    recompute_ms: list[float] = field(default_factory=list)
    hydrate_ms: float = 0.0
    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    ours: pa.Table | None = None
    """The rows of the view when it was last compared; None if they could not be read."""
    pipeline: Refreshes | None = None
    """The same view in a pipeline, if one refreshes it."""

    def figures(self) -> dict[str, Any]:
        """Return what the document says of it."""
        if not self.ticks:
            return {"wrong": self.wrong}
        tick_ms = statistics.median(tick.ms for tick in self.ticks)
        recompute_ms = statistics.median(self.recompute_ms)
        return {
            "ratio": round(recompute_ms / tick_ms, 2),
            "tick_ms": round(tick_ms, 1),
            "recompute_ms": round(recompute_ms, 1),
            "hydrate_ms": round(self.hydrate_ms, 1),
            "jobs": round(statistics.fmean(tick.jobs for tick in self.ticks), 1),
            "waves": round(statistics.fmean(tick.waves for tick in self.ticks), 1),
            "compiled": round(statistics.fmean(tick.compiled for tick in self.ticks), 1),
            "rows": self.rows,
            "wrong": self.wrong,
            **(self.pipeline.figures(tick_ms) if self.pipeline is not None else {}),
        }


class _Run:
    """One run of the benchmark."""

    def __init__(self, session: SparkSession, directory: Path, load: Load, note: Callable[[str], object]) -> None:
        self._session = session
        self._directory = directory
        self._load = load
        self._note = note
        self._queries = {name: queries()[name] for name in load.views}
        tables = tables_of(self._queries.values())
        self._contents = Contents(directory / "generated", directory / "changed", load.scale, load.spread, tables)
        self._peer = Peer(session)
        self._commit_ms: list[float] = []
        self._changed_rows: list[int] = []

    async def measured(self) -> dict[str, Any]:
        """Measure everything."""
        document: dict[str, Any] = {}
        async with opened(self._session, self._directory / "location") as env:
            document["load_ms"] = round(await self._fill(env), 1)
            if self._load.one_by_one:
                with self._pipeline() if self._load.pipeline else nullcontext() as pipeline:
                    document |= await self._one_by_one(env, pipeline)
            if self._load.together:
                document["together"] = await self._together(env)
            document["merge_ms"] = round(env.merge_ms, 1)
        return {
            **document,
            "commit_ms": round(statistics.median(self._commit_ms), 1),
            "changed_rows": round(statistics.median(self._changed_rows)),
            "scale": self._load.scale,
            "change": self._load.change,
            "keys": self._load.spread.value,
            "ticks": self._load.ticks,
        }

    async def _fill(self, env: Measured) -> float:
        files = dict(self._contents.files)
        self._peer.follow(self._contents, files)
        for name in files:
            await env.execute(f"CREATE TABLE {name} ({columns(self._contents, name)})")
        return await env.commit(
            [Edit(name, None, self._session.read.parquet(path.as_uri())) for name, path in files.items()]
        )

    def _pipeline(self) -> Pipeline:
        cores = self._session.sparkContext.defaultParallelism
        return Pipeline(self._contents.files, self._directory / "pipeline", cores)

    async def _one_by_one(self, env: Measured, pipeline: Pipeline | None) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        left_out = pipeline.left_out if pipeline is not None else ""
        if left_out:
            self._note(f"Spark's declarative pipeline is left out: {left_out}")
        for name, query in self._queries.items():
            seen = _Seen()
            if pipeline is not None and not left_out and name in self._load.pipeline:
                seen.pipeline = Refreshes(pipeline, name, query)
            reasons: list[str] = []
            try:
                await self._define(env, name)
                reasons = explain_view(env.core, name, {}).reasons
                await self._follow(env, {name: seen}, seen)
            except StrandlineError as error:
                seen.wrong.append(reason(error))
            found[name] = {**seen.figures(), "recomputed": reasons}
            self._note(f"{name}: {found[name]}")
            await env.execute(f"DROP MATERIALIZED VIEW IF EXISTS {name}")
        ratios = [each.get("ratio", 0.0) for each in found.values()]
        return {
            "views": found,
            "ratios": {f"at least {least}": sum(ratio >= least for ratio in ratios) for least in RATIOS},
            **({"pipeline_left_out": left_out} if left_out else {}),
        }

    async def _together(self, env: Measured) -> dict[str, Any]:
        all_of_them = _Seen()
        each = {name: _Seen() for name in self._queries}
        for name in self._queries:
            try:
                await self._define(env, name)
            except StrandlineError as error:
                all_of_them.wrong.append(f"{name}: {reason(error)}")
                del each[name]
        await self._follow(env, each, all_of_them)
        all_of_them.rows = sum(seen.rows for seen in each.values())
        all_of_them.wrong += [f"{name}: {wrong}" for name, seen in each.items() for wrong in seen.wrong]
        return all_of_them.figures()

    async def _define(self, env: Measured, name: str) -> None:
        await env.execute(f"CREATE MATERIALIZED VIEW {name} AS\n{self._queries[name]}")

    async def _follow(self, env: Measured, views: Mapping[str, _Seen], total: _Seen) -> None:
        """Compute ``views``, and tick them under changes; ``total`` has what the ticks took."""
        total.hydrate_ms = (await env.tick()).ms
        self._note(f"{', '.join(views)}: computed in {total.hydrate_ms:.0f} ms")
        await self._compare(env, views, "when it was computed")
        for number in range(self._load.warm + self._load.ticks):
            edits = self._contents.change(self._load.change)
            self._changed_rows.append(sum(_rows(edit) for edit in edits))
            self._commit_ms.append(await env.commit(edits))
            tick = await env.tick()
            self._peer.follow(self._contents, [edit.table for edit in edits])
            when, counts = f"after change {number + 1}", number >= self._load.warm
            recompute_ms = await self._compare(env, views, when)
            self._note(f"{number + 1}: tick {tick.ms:.0f} ms, recompute {recompute_ms:.0f} ms")
            if total.pipeline is not None:
                self._note(f"{number + 1}: {total.pipeline.follow(when, total.ours, counts=counts)}")
            if counts:
                total.ticks.append(tick)
                total.recompute_ms.append(recompute_ms)

    async def _compare(self, env: Measured, views: Mapping[str, _Seen], when: str) -> float:
        """Compare ``views`` with what plain Spark says, and return how long that took it, in milliseconds."""
        took_ms = 0.0
        for name, seen in views.items():
            theirs, ms = self._peer.answer(self._queries[name])
            took_ms += ms
            if wrong := await _wrong(env, name, seen, theirs):
                seen.wrong.append(f"{when} it {wrong}")
        return took_ms


async def _wrong(env: Measured, name: str, seen: _Seen, theirs: pa.Table) -> str:
    """Return how a view differs from what it should hold; empty if it does not."""
    seen.ours = None
    if problem := env.core.health.problems().get(name):
        return f"stands still: {problem}"
    try:
        ours = await env.rows(name)
    except StrandlineError as error:
        return f"cannot be read: {reason(error)}"
    seen.ours, seen.rows = ours, ours.num_rows
    lacks, many = differences(ours, theirs)
    return f"lacks {lacks} rows and has {many} too many" if lacks or many else ""


def _rows(edit: Edit) -> int:
    return sum(rows.num_rows for rows in (edit.deleted, edit.inserted) if isinstance(rows, pa.Table))
