"""What is done to a query in Spark's JVM, below PySpark: trees of Catalyst, and answers made from them.

PySpark binds parameters by writing them into the text (``spark.sql(text, args)``): `SELECT 5 -?` with −3 becomes a
comment, and `?AS x` a name.  Catalyst, the layer below, has a parser that keeps question marks as nodes, and a plan
that says which literals are in their places.  No public call makes such trees, or plans a frame of one session in
another.

An answer goes through `Loops`, so that it can be cancelled soon, and through `carried`, so that Arrow has a type for
each of its columns.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType, VariantType

from strandline.engine.frames.failures import is_sparks
from strandline.engine.session.start import sibling

_CATALYST: Final = "org.apache.spark.sql.catalyst"


def folded(session: SparkSession, columns: Sequence[Column]) -> list[Any]:
    """Return the values of expressions without columns, as literals.

    Trap: Spark 4.3 compares a whole number with a decimal literal by its digits, and fails where it is NULL.  So a NULL
    of that type is a variable.
    """
    named = [column.alias(f"value_{place}") for place, column in enumerate(columns)]
    plan = _plan(session.range(1).select(*named))
    found = listed(singleton(session, f"{_CATALYST}.optimizer.ConstantFolding").apply(plan).expressions())
    values = [each.child() for each in found]
    return [variable(session, "null", each) if _is_null_decimal(each) else each for each in values]


def _is_null_decimal(literal: Any) -> bool:
    return kind(literal.dataType()) == "DecimalType" and literal.value() is None


def parsed(session: SparkSession, text: str) -> Any:
    """Return the plan that a query's text says, unresolved.  Raises `ParseException`."""
    return _parser(session).parsePlan(text)


def expression(session: SparkSession, text: str) -> Any:
    """Return the expression that a text says, unresolved.  Raises `ParseException`."""
    return _parser(session).parseExpression(text)


def numbered(session: SparkSession, plans: Iterable[Any]) -> Any:
    """Return one plan, not analysed, of all of these; aliases that Spark has numbered have one number in it.

    Two are equal if they are of equal plans, in the same order.
    """
    whole = _named(session, f"{_CATALYST}.plans.logical.Union")(_seq(session, list(plans)), False, False)
    return singleton(session, f"{_CATALYST}.plans.NormalizePlan").normalizeExprIds(whole)


def simplified(session: SparkSession, plan: Any) -> Any:
    """Return a plan with its conditions simplified: ``NOT a IS NULL`` is ``a IS NOT NULL``."""
    return singleton(session, f"{_CATALYST}.optimizer.BooleanSimplification").apply(plan)


def inlined(rows: DataFrame) -> DataFrame:
    """Return the same rows, with what a text names by WITH written out, as Spark's optimiser begins by doing itself.

    It writes it out anew whenever it checks a frame that is made of these rows, each name in each place that has it.
    """
    session, plan = rows.sparkSession, _plan(rows)
    rule = _named(session, f"{_CATALYST}.optimizer.InlineCTE")
    written = rule(*(rule.__getattr__(f"apply$default${place}")() for place in (1, 2, 3))).apply(plan)
    return rows if plan.fastEquals(written) else frame(session, written)


def with_values(session: SparkSession, plan: Any, values: Sequence[Any]) -> Any:
    """Return ``plan`` with expressions in the place of its question marks, in the order of the text."""
    if not values:  # Catalyst asserts that there are some
        return plan
    return _named(session, f"{_CATALYST}.analysis.PosParameterizedQuery")(plan, _seq(session, values))


def frame(session: SparkSession, plan: Any) -> DataFrame:
    """Return the frame of a plan, analysed.  Raises `AnalysisException`."""
    rows = singleton(session, "org.apache.spark.sql.classic.Dataset").ofRows(session._jsparkSession, plan)  # noqa: SLF001
    return DataFrame(rows, session)


def column(session: SparkSession, found: Any, values: Sequence[Any]) -> Column:
    """Return an expression, unresolved, with ``values`` in the place of its question marks."""
    alone = _named(session, f"{_CATALYST}.plans.logical.Filter")(found, _nothing(session))
    bound = singleton(session, f"{_CATALYST}.analysis.BindParameters").apply(with_values(session, alone, values))
    made = _named(session, "org.apache.spark.sql.classic.ExpressionUtils").column(bound.expressions().head())
    return Column(made)


def variable(session: SparkSession, name: str, value: Any) -> Any:
    """Return an expression that has the value of a literal, and is found again in an analysed plan by its name."""
    jvm: Any = session._jvm  # noqa: SLF001 - see the module
    parts = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.String"), 0)
    called = _named(session, "org.apache.spark.sql.connector.catalog.Identifier").of(parts, name)
    defined = _named(session, f"{_CATALYST}.catalog.VariableDefinition")(called, name, value)
    catalog = singleton(session, f"{_CATALYST}.analysis.FakeSystemCatalog")
    of = _named(session, f"{_CATALYST}.expressions.VariableReference")
    return of(_seq(session, [name]), catalog, called, defined, True)


def expressions(plan: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield all expressions of an analysed plan, its subqueries' too, each with those around it, the innermost last."""
    for each in listed(plan.expressions()):
        yield from _within(each, ())
    for child in listed(plan.children()):
        yield from expressions(child)


def analysed_plan(rows: DataFrame) -> Any:
    """Return the analysed plan of a frame."""
    return _plan(rows)


def listed(found: Any) -> list[Any]:
    """Return the elements of a sequence of Scala's."""
    return [found.apply(place) for place in range(found.size())]


def kind(node: Any) -> str:
    """Return the name of a node's class."""
    return str(node.getClass().getSimpleName())


def _within(found: Any, around: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    yield found, around
    for child in listed(found.children()):
        yield from _within(child, (*around, found))
    if hasattr(found, "plan") and kind(found) in _SUBQUERIES:
        yield from expressions(found.plan())


_SUBQUERIES: Final = frozenset({"ScalarSubquery", "ListQuery", "Exists", "LateralSubquery"})


def singleton(session: SparkSession, name: str) -> Any:
    """Return the one instance of an ``object`` of Scala's, by its whole name."""
    return _named(session, f"{name}$").__getattr__("MODULE$")


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - see the module


def _parser(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001 - see the module


def _nothing(session: SparkSession) -> Any:
    return singleton(session, f"{_CATALYST}.plans.logical.OneRowRelation").apply()


def _seq(session: SparkSession, values: Sequence[Any]) -> Any:
    return _named(session, "org.apache.spark.api.python.PythonUtils").toSeq(list(values))


def _named(session: SparkSession, name: str) -> Any:
    """Return a class of the JVM."""
    found: Any = session._jvm  # noqa: SLF001 - see the module
    for part in name.split("."):
        found = found.__getattr__(part)
    return found


_LOOP: Final = re.compile(r"^[\s:+\-*()\d]*(BroadcastNestedLoopJoin|CartesianProduct|Generate)\b", re.MULTILINE)
"""A line of Spark's text of a plan for a step that may make many rows, or comparisons, of one row."""
_GENERATOR: Final = "Generate"
"""How the line of such a step begins that is no product."""
_CONF: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.cartesianProductExec.buffer.in.memory.threshold": "1",
}
_PARTITIONS: Final = (
    "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.shuffle.partitions",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.maxPartitionNum",
)
"""What says how many partitions a relation in memory, a shuffle and a scan have."""


def partitions(cores: int, inputs: int) -> int:
    """Return how many partitions each of so many inputs has, so that all combinations are no more than the cores.

    >>> [partitions(*each) for each in ((2, 2), (8, 2), (8, 3), (64, 3), (2, 9))]
    [1, 2, 2, 4, 1]
    """
    return max(parts for parts in range(1, cores + 1) if parts**inputs <= cores)


class Loops:
    """Plans answers of one session.  Calls may come from any thread.

    The tasks of such an answer notice soon that they are cancelled, even if each of their rows takes long.  A task
    checks for that when it takes a row from a scan, a range or a shuffle.  Code that Spark generates for whole stages
    takes rows by thousands, and checks once for all of them.  That is a moment, unless each row meets all rows of
    another relation (a nested loop), or becomes many rows (a generator): then it is minutes.  So an answer with such a
    step is planned without that code.  Its inner loops are products, which keep the rows of one side as a sort does
    and check at each of these too, so loops may be nested.

    A product has a task for each pair of its sides' partitions, and Spark takes no slot away from a running task:
    three inputs of a partition per core would take all slots until they end.  So the inputs of a loop have so few
    partitions that it has at most one task per core.

    Limit: a loop that is no inner join, or a generator, inside another one, is cancelled late.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._others: dict[int, SparkSession] = {}
        """By how many partitions each input has."""

    def interruptible(self, rows: DataFrame) -> DataFrame:
        """Return ``rows``, or the same rows planned otherwise."""
        execution: Any = rows._jdf.queryExecution()  # noqa: SLF001
        loops = _LOOP.findall(execution.executedPlan().toString())
        if not loops:
            return rows
        parts = partitions(self._session.sparkContext.defaultParallelism, 1 + len(loops) - loops.count(_GENERATOR))
        with self._lock:
            if parts not in self._others:
                few = dict.fromkeys(_PARTITIONS, str(parts))
                self._others[parts] = sibling(self._session, _CONF | few)
            other: Any = self._others[parts]
        dataset = getattr(getattr(other._jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")  # noqa: SLF001
        return DataFrame(dataset.ofRows(other._jsparkSession, execution.analyzed()), other)  # noqa: SLF001


_PLACE = "c"
"""How the name of a column begins that has its place for a name, while Spark and Arrow know it by name alone."""


def carried(rows: DataFrame) -> DataFrame:
    """Return an answer in columns that Arrow has types for; if some had none, each is named after its place.

    A collection refuses what cannot be stored; an answer refuses nothing.  Two columns may have one name, or a name
    that no column of a collection could have.  If Arrow has no form for something inside a column (an interval of
    months, a variant, a struct with a name twice, the elements of an `array()`), the column is a text, as Spark's
    `CAST(… AS STRING)` writes it.
    """
    if all(_has_form(field.dataType) for field in rows.schema):
        return rows
    placed = rows.toDF(*(f"{_PLACE}{place}" for place in range(len(rows.columns))))
    cells = [
        F.col(field.name) if _has_form(field.dataType) else F.col(field.name).cast("string").alias(field.name)
        for field in placed.schema
    ]
    return placed.select(*cells)


def shape(rows: DataFrame) -> pa.Schema:
    """Return the columns of an answer: Spark's names in its order, and the types that Arrow has for them."""
    return named(to_arrow_schema(carried(rows).schema, timezone="UTC"), rows.columns)


def named(carried_as: pa.Schema, names: list[str]) -> pa.Schema:
    """Return the columns that an answer has for its client; ``names``: Spark's.

    >>> named(pa.schema([("c0", pa.int64())]), ["count(1)"])
    count(1): int64
    """
    return pa.schema([field.with_name(name) for name, field in zip(names, carried_as, strict=True)])


def _has_form(kind: DataType) -> bool:
    """Tell whether Arrow has a type for values of this one."""
    match kind:
        case VariantType():  # PySpark makes a struct of Spark's own bytes of it
            return False
        case ArrayType():
            return _has_form_inside(kind.elementType, nullable=kind.containsNull)
        case MapType():
            return _has_form_inside(kind.keyType, nullable=False) and _has_form_inside(
                kind.valueType, nullable=kind.valueContainsNull
            )
        case StructType():
            names = [field.name for field in kind]
            return len(set(names)) == len(names) and all(
                _has_form_inside(field.dataType, nullable=field.nullable) for field in kind
            )
    try:
        to_arrow_schema(StructType([StructField(_PLACE, kind)]), timezone="UTC")
    except PySparkException:
        return False
    return True


def _has_form_inside(kind: DataType, *, nullable: bool) -> bool:
    """Tell the same of a part of a value. What `array()` holds is VOID and never NULL: Arrow has no such type."""
    return (nullable or not isinstance(kind, NullType)) and _has_form(kind)


def alike(session: SparkSession, one: str, other: str) -> bool:
    """Tell whether two texts are parsed alike, as far as that is easily told: False is not certain.

    ``NOT a IS NULL`` is ``a IS NOT NULL`` here.  A WITH inside a query in parentheses is not looked into, and none that
    is recursive.

    Two such texts are one query, and need no analysis to show it: parsing takes a twentieth of the time of the
    analysis.  A parsed plan has names as they are written, and no types.  Only the numbers of its aliases, which Spark
    never reuses, differ between two readings of one text.
    """
    try:
        mine, theirs = (numbered(session, _parts(parsed(session, text))) for text in (one, other))
        return bool(mine.equals(theirs) or simplified(session, mine).equals(simplified(session, theirs)))
    except ParseException:
        return False
    except Exception as error:
        if not is_sparks(error):  # its own mistakes come as what they are
            raise
        return False  # a rule wants to know more of a plan than its text says


def _parts(plan: Any) -> Iterator[Any]:
    """Yield the queries that the WITH in front of a plan names, with their names, and the one behind it."""
    if kind(plan) == "UnresolvedWith" and not plan.allowRecursion():
        for each in listed(plan.cteRelations()):
            yield each._2()  # noqa: SLF001 - the second one of a tuple of Scala
        plan = plan.child()
    yield plan
