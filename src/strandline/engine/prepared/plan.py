"""One prepared plan: what a stage writes in a small window, as an RDD that can be run again and again.

It gives the rows of `parts.staging.small`: normalised, consolidated, with their hashes.  Everything in it has one
partition.  An exchange, a broadcast and a subquery keep the rows of their first run, so a plan with one of them would
give **stale rows without an error**.  A plan is taken only if each of its nodes is known to keep nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from strandline.algebra.nodes import Node
from strandline.algebra.schema import RESERVED
from strandline.engine.parts.staging import small
from strandline.engine.prepared.leaf import Leaf, Leaves
from strandline.engine.sql.rendering import render
from strandline.persist.handles.contents import StageRequest

KEEPS_NOTHING: Final = frozenset(
    {
        "CartesianProduct",
        "Coalesce",
        "CollectLimit",
        "Expand",
        "Filter",
        "Generate",
        "GlobalLimit",
        "HashAggregate",
        "InputAdapter",
        "LocalLimit",
        "LocalTableScan",
        "ObjectHashAggregate",
        "Project",
        "Scan ExistingRDD arrow",
        "Scan OneRowRelation",
        "ShuffledHashJoin",
        "Sort",
        "SortAggregate",
        "SortMergeJoin",
        "TakeOrderedAndProject",
        "Union",
        "WholeStageCodegen",
        "Window",
        "WindowGroupLimit",
    }
)
"""Spark's names of the nodes that compute all of their rows anew in each run, if they have one partition."""


class CannotPrepareError(Exception):
    """Spark plans it with a node that may keep the rows of its first run."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan that is ready: its leaves by the names of their frames, what it gives, and the RDD of that."""

    leaves: Mapping[str, Leaf]
    schema: pa.Schema
    batches: Any
    """A `JavaRDD` of the result's record batches, of one partition."""

    def table(self, batches: Sequence[memoryview]) -> pa.Table:
        """Return the result whose record batches are ``batches``."""
        found = [pa.ipc.read_record_batch(pa.py_buffer(batch), self.schema) for batch in batches]
        return pa.Table.from_batches(found, self.schema)


def prepare(leaves: Leaves, node: Node, schemas: Mapping[str, pa.Schema], request: StageRequest) -> Prepared:
    """Return the plan of what ``node`` gives, staged as ``request`` says, over tables with ``schemas``.

    Raises:
        CannotPrepareError: it holds a node that may keep rows.
        Exception: whatever Spark raises.
    """
    own = {name: leaves.leaf(schema) for name, schema in schemas.items()}
    views = {name: f"{RESERVED}leaf_{next(leaves.numbers)}" for name in own}
    for name, view in views.items():
        own[name].frame.createOrReplaceTempView(view)
    try:
        frame = small(leaves.session.sql(render(node, views, single=True)), request)
    finally:
        for view in views.values():
            leaves.session.catalog.dropTempView(view)
    return compiled(leaves, own, frame)


def compiled(leaves: Leaves, own: Mapping[str, Leaf], frame: DataFrame) -> Prepared:
    """Return the plan of ``frame``, which reads the leaves ``own`` and nothing else.

    Raises as `prepare`.
    """
    jdf: Any = frame._jdf  # noqa: SLF001 - PySpark has no name for a plan
    plan = jdf.queryExecution().executedPlan()
    if "Exchange" in plan.toString():  # one call, where to look at every node takes several for each
        plan = leaves.without_exchanges(plan)
    unknown = sorted({name for name in _nodes(plan) if name not in KEEPS_NOTHING})
    if unknown:
        raise CannotPrepareError(f"Spark plans it with {', '.join(unknown)}")
    return Prepared(own, to_arrow_schema(frame.schema, timezone="UTC"), jdf.toArrowBatchRdd(plan).toJavaRDD())


def _nodes(plan: Any) -> Iterator[str]:
    """Yield the name of each node of a physical plan."""
    yield str(plan.nodeName()).split(" (")[0]
    if plan.subqueries().nonEmpty():
        yield "a subquery"
    children = plan.children()
    for position in range(children.size()):
        yield from _nodes(children.apply(position))
