"""Catalyst: trees of Spark's that no public call makes, built in its JVM.

PySpark binds parameters by writing them into the text (``spark.sql(text, args)``): `SELECT 5 -?` with −3 is a comment
then, and `?AS x` a name.  Below it Catalyst has what is wanted: a parser that keeps question marks as nodes, and a plan
that says which literals are in their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession

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
