"""One prepared plan: what a stage writes in a small window, as an RDD that can be run again and again.

It gives the rows of `parts.staging.small`: normalised, consolidated, with their hashes.  Everything in it has one
partition.  An exchange, a broadcast and a subquery keep the rows of their first run, so a plan with one of them would
give **stale rows without an error**.  A plan is prepared only if each of its nodes is known to keep nothing.

A plan runs in the calling thread, as a task of its own and in no job.  A job would serialise the whole plan for its
tasks, with the source of the code that Spark generated, and read it again: for few rows that is most of the work.

This uses internals of Spark (an RDD returns its own array of partitions; a task is a context of the thread), so it
stays in this room, which falls back to fresh plans wherever anything here fails.
"""

from __future__ import annotations

import itertools
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from strandline.algebra.nodes import Node
from strandline.algebra.schema import RESERVED
from strandline.engine.parts.staging import small
from strandline.engine.sql.rendering import render
from strandline.persist.handles.contents import StageRequest

AS_RDD: Final = "spark.sql.execution.arrow.localRelationThreshold"
"""Arrow data of more bytes than this becomes an RDD, and not a relation that holds its rows for ever."""
_LENGTH: Final = struct.Struct(">i")
"""What stands before the bytes of a record batch."""


class Leaves:
    """Makes the leaves of one session, and exchanges their rows, those of many leaves at once."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.numbers = itertools.count()
        """For names: no two plans that are prepared at a time may share one."""
        jvm: Any = session._jvm  # noqa: SLF001  # see above; so with all that follows
        self._list = jvm.java.util.ArrayList  # looked up once: each name on the way to a class is a call into the JVM
        self._as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
        self._frame_of = jvm.PythonSQLUtils.toDataFrame
        self._planned = _instance(jvm.org.apache.spark.sql.classic, "Dataset").ofRows
        self._single = _instance(jvm.org.apache.spark.sql.catalyst.plans.physical, "SinglePartition")
        self._none = jvm.scala.Option.empty
        self._copy = jvm.java.lang.System.arraycopy
        context: Any = session.sparkContext
        self._context = context._jsc  # noqa: SLF001
        self._array = context._gateway.new_array  # noqa: SLF001
        self._sessions = jvm.org.apache.spark.sql.classic.SparkSession
        self._stream = jvm.java.io.DataOutputStream
        self._buffered = jvm.java.io.BufferedOutputStream
        self._file = jvm.java.io.FileOutputStream
        self._rdd = jvm.org.apache.spark.api.java.JavaRDD
        self._read = jvm.PythonRDD.readRDDFromFile
        self._write = jvm.PythonRDD.writeIteratorToStream
        spark = jvm.org.apache.spark
        self._memory = _instance(spark.memory, "UnifiedMemoryManager").apply(context._jsc.sc().conf(), 1)  # noqa: SLF001
        self._memory_of = spark.memory.TaskMemoryManager
        self._metrics = spark.executor.TaskMetrics
        self._cloned = jvm.org.apache.commons.lang3.SerializationUtils.clone
        self._properties = jvm.java.util.Properties()  # as a task of a job has them: its session's settings
        for key, value in session.conf.getAll.items():
            self._properties.setProperty(key, value)
        self._tasks = _instance(spark, "TaskContext")
        self._task_of = spark.TaskContextImpl
        self._no_resources = _instance(jvm.scala.collection.immutable, "Map").empty()
        self._nothing = self._context.parallelize(self._list(), 1).rdd().partitions()
        end = self._list()
        end.add(bytearray())  # shorter than each record batch
        self._end = self._context.parallelize(end, 1)

    def leaf(self, schema: pa.Schema) -> Leaf:
        """Return a leaf for tables with the columns of ``schema``; it holds no rows yet."""
        types = from_arrow_schema(schema)
        arrow = to_arrow_schema(types, timezone="UTC")
        batches = self._list()
        empty = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in arrow], schema=arrow)
        batches.add(bytearray(empty.serialize().to_pybytes()))
        iterator, session = self._as_scala(batches.iterator()), self.session._jsparkSession  # noqa: SLF001
        relation = self._frame_of(iterator, types.json(), session).queryExecution().analyzed()
        partitions = relation.rdd().partitions()
        if len(partitions) != 1:
            raise RuntimeError(f"Spark gives a leaf {len(partitions)} partitions")
        # What is known of it: it is in one partition, so that no join and no grouping has to exchange it.
        known = (self._single, relation.outputOrdering(), False, self._none())
        single = relation.copy(relation.output(), relation.rdd(), *known, session, self._none(), self._none(), False)
        return Leaf(DataFrame(self._planned(session, single), self.session), arrow, partitions)

    def exchange(self, rows: Sequence[tuple[Leaf, pa.Table]]) -> None:
        """Let each leaf hold the rows of its table, and no others."""
        filled = []
        with tempfile.NamedTemporaryFile(prefix="strandline-", suffix=".rows") as file:
            for leaf, table in rows:
                if not table.num_rows:
                    self.clear([leaf])
                    continue
                filled.append(leaf)
                (batch,) = table.cast(leaf.schema).combine_chunks().to_batches()
                written = batch.serialize()
                file.write(_LENGTH.pack(written.size))
                file.write(written)
            file.flush()
            partitions = self._read(self._context, file.name, len(filled)).rdd().partitions() if filled else None
        for position, leaf in enumerate(filled):
            self._copy(partitions, position, leaf.partitions, 0, 1)

    def clear(self, leaves: Iterable[Leaf]) -> None:
        """Let leaves hold no rows."""
        for leaf in leaves:
            self._copy(self._nothing, 0, leaf.partitions, 0, 1)

    def without_exchanges(self, plan: Any) -> Any:
        """Return a physical plan without those exchanges that make one partition of one: they keep their rows.

        Spark forgets of some joins that they are one partition.  Nodes that are copied belong to the active session.
        """
        self._sessions.setActiveSession(self.session._jsparkSession)  # noqa: SLF001
        children = plan.children()
        below = [children.apply(position) for position in range(children.size())]
        changed = [self.without_exchanges(child) for child in below]
        name, partitions = str(plan.nodeName()), plan.outputPartitioning().numPartitions()
        if name == "Exchange" and partitions == changed[0].outputPartitioning().numPartitions() == 1:
            return changed[0]
        if all(one is other for one, other in zip(below, changed, strict=True)):
            return plan
        replaced = self._list()
        for child in changed:
            replaced.add(child)
        return plan.withNewChildren(self._as_scala(replaced).toSeq())

    def run(self, rdds: Sequence[Any]) -> list[list[bytes]]:
        """Return the record batches of each of ``rdds``, which have one partition each, computed in this thread."""
        array = self._array(self._rdd, 2 * len(rdds))
        for position, rdd in enumerate(rdds):
            array[2 * position], array[2 * position + 1] = rdd, self._end
        whole = self._context.union(array).coalesce(1).rdd()
        partition = self.written(whole.partitions()[0])
        number = -1 - next(self.numbers)
        memory = self._memory_of(self._memory, number)
        task = self._task_of(
            0, 0, 0, number, 0, 1, memory, self._properties, None, self._metrics.empty(), None, self._no_resources
        )
        self._tasks.setTaskContext(task)
        try:
            # One call for all of it: each look into a list of the JVM is a call.  A file, because an answer of Py4J is
            # text that is copied and searched several times on either side: of a long row that takes seconds.
            with tempfile.NamedTemporaryFile(prefix="strandline-", suffix=".batches") as file:
                stream = self._stream(self._buffered(self._file(file.name)))
                try:
                    self._write(whole.iterator(partition, task), stream)
                finally:
                    stream.close()
                return list(_parts(file))
        finally:
            task.markTaskCompleted(self._none())
            memory.cleanUpAllAllocatedMemory()
            self._tasks.unset()

    def written(self, partition: Any) -> Any:
        """Return a partition as a task would get it: those of joins and unions look up those below them only then."""
        return self._cloned(partition)


class Leaf:
    """A leaf: its frame, of one partition; the Arrow schema that its rows have; and Spark's array of its partitions.

    Its few rows can be exchanged for others.  The frame is the one that PySpark makes of Arrow data, over an RDD with
    one partition.  A partition of such an RDD carries its record batches, and Spark looks the partitions up again
    whenever one is written for a task.  So rows are exchanged by putting the partition of another such RDD into the
    leaf's array of partitions: Spark plans nothing.  The rows go to the JVM through a file, as PySpark's own do: as
    arguments of a call they would become text, and bytes again.
    """

    def __init__(self, frame: DataFrame, schema: pa.Schema, partitions: Any) -> None:
        self.frame = frame
        self.schema = schema
        self.partitions = partitions


def _instance(package: Any, name: str) -> Any:
    """Return the one instance of a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _parts(file: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield the record batches of one RDD after another.  Each batch stands behind its length; none ends an RDD's."""
    batches = list[bytes]()
    while head := file.read(_LENGTH.size):
        (length,) = _LENGTH.unpack(head)
        if length:
            batches.append(file.read(length))  # bytes of its own: Arrow's numbers have to lie at multiples of eight
        else:
            yield batches
            batches = []


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

    def table(self, batches: Sequence[bytes]) -> pa.Table:
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
