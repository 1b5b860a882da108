"""The authority on types and doubts: Spark analyses a query over empty relations, and no job runs.

What Spark refuses becomes a `DefinitionError` (`asked.expressions`).  The analyst works in a session of its own, so
that its temporary views never replace those of another user.

`doubts` finds in Spark's analysed plan what may leave a query without one answer (`algebra.scalar`).  The text alone
cannot show it: ``user`` is a column or a function, and ``at <= 'now'`` becomes a cast only in the analysis.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strandline.algebra import types
from strandline.algebra.nodes import Node
from strandline.algebra.scalar import OF_CLOCK, Doubt, DoubtKind, of_clock
from strandline.algebra.schema import DIFF, RESERVED, TIME, Schema, quote
from strandline.engine.asked import catalyst, expressions
from strandline.engine.asked.expressions import place_in, refusal, sentence
from strandline.engine.frames.ddl import schema_of
from strandline.engine.frames.failures import as_ours, is_sparks, thrown
from strandline.engine.session import reach
from strandline.engine.session.causes import causes
from strandline.engine.session.cluster import PYTHON_KEY
from strandline.engine.session.functions import Functions
from strandline.engine.session.start import sibling
from strandline.engine.session.workers import Workers
from strandline.engine.sql.rendering import render
from strandline.errors import DefinitionError, Position, Unavailable, Unsettled
from strandline.plane import Described

_CALLS: Final = frozenset({"CurrentDate", "CurrentTime", "CurrentTimestamp", "CurrentUser"})
_CHOOSING: Final = {"Deduplicate": "DISTINCT", "Distinct": "DISTINCT", "Except": "EXCEPT", "Intersect": "INTERSECT"}
_CUTS: Final = {"GlobalLimit": "LIMIT", "Offset": "OFFSET", "Tail": "LIMIT"}
_RANKS: Final = frozenset({"CumeDist", "DenseRank", "PercentRank", "Rank"})
"""Window functions that treat rows with equal ORDER BY values alike, though Spark gives them a frame of ROWS."""
_SUBQUERIES: Final = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})
_TIMES: Final = ("date", "timestamp", "timestamp_ntz")
_HOPEFUL: Final = re.compile(rf'"value":"(?:\\[a-z0-9]+| )*{OF_CLOCK}', re.IGNORECASE)
_ORDERING: Final = re.compile(rf'\.(?:WindowExpression|{"|".join(_CUTS)})"')
_CALLED: Final = re.compile(rf'\.(?:{"|".join(sorted(_CALLS))})"')
_COLLATED: Final = re.compile(r"COLLATE (?!UTF8_BINARY\b)(\w+)", re.IGNORECASE)
_REPLACED: Final = frozenset({"to_date", "to_timestamp"})
"""Functions that are casts if they are given no format, by Spark's name of the node; so are those with TRY or LTZ."""


def doubts(query: DataFrame, json: str, place: Callable[[int], Position | None], *, ordering: bool) -> Iterator[Doubt]:
    """Yield what is doubtful in ``query``; ``place`` says where a character of its text is.

    ``json``: its analysed plan (`reach.analysed_json`).
    ``ordering``: also what may only lean on the order of rows.

    Some texts become a time of the clock (Spark 4.3, `SpecialDatetimeValues` of the optimizer and
    `stringToTimestamp`): a cast of a constant text to DATE, TIMESTAMP or TIMESTAMP_NTZ takes now, today, yesterday and
    tomorrow, in any case, with spaces around them, and all but now with a zone behind them.  A text without a date
    ('12:30') is a time of today.  In a column the four words are no times: there such a cast fails, and TRY_CAST gives
    NULL.

    Trap: each question to the JVM takes a fraction of a millisecond.  So the plan is walked only where its JSON, which
    is one question, shows something to look for.
    """
    plan = query._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public call gives an analysed plan
    jvm: Any = query.sparkSession._jvm  # noqa: SLF001 - nor is the rule a public one
    rule = jvm.org.apache.spark.sql.catalyst.optimizer.SpecialDatetimeValues
    if (
        "collat" in json.lower()
        or any(each.search(json) for each in (_CALLED, _HOPEFUL))
        or (ordering and _ORDERING.search(json))
        or not plan.fastEquals(rule.apply(plan))
    ):
        yield from _Walk(place).plan(plan)


@dataclass(frozen=True, slots=True)
class _Walk:
    place: Callable[[int], Position | None]

    def plan(self, node: Any) -> Iterator[Doubt]:
        """Yield the doubts of a plan."""
        name = node.nodeName()
        if name == "View":
            return  # a relation that the query reads
        children = list(_each(node.children()))
        if name in _CUTS:
            yield Doubt(DoubtKind.CUT, _CUTS[name], self._place(node))
            yield from self._chosen(_CUTS[name], node, _each(node.output()))
        elif name in _CHOOSING:
            yield from self._chosen(_CHOOSING[name], node, _each(node.output()))
        tied = next(filter(None, map(_collation, _each(_below(node).output()))), "") if name == "Window" else ""
        for each in _each(node.expressions()):
            yield from self._expression(each, tied)
        if name == "Aggregate":
            yield from self._groups(node.aggregateExpressions())
        for child in children:
            yield from self.plan(child)

    def _expression(self, node: Any, tied: str) -> Iterator[Doubt]:
        """Yield the doubts of an expression; ``tied``: by this collation rows may be equal that are not."""
        name = node.nodeName()
        if name in _CALLS:
            yield Doubt(DoubtKind.CALL, node.prettyName(), self._place(node))
        elif name == "Cast":
            yield from self._cast(node)
        elif name == "WindowExpression":
            yield self._window(node, tied)
        elif name == "AggregateExpression":
            yield from self._chosen(node.aggregateFunction().prettyName(), node, [node])
        elif name in _SUBQUERIES:
            yield from self.plan(node.plan())
        for child in [node.replacement()] if name in _REPLACED else _each(node.children()):
            yield from self._expression(child, tied)

    def _cast(self, node: Any) -> Iterator[Doubt]:
        child = node.child()
        if node.dataType().simpleString() in _TIMES and child.foldable() and child.dataType().typeName() == "string":
            value = str(child.eval(None))
            if of_clock(value):
                yield Doubt(DoubtKind.CLOCK, value, self._place(child))

    def _window(self, node: Any, collation: str) -> Doubt:
        called, frame = node.windowFunction(), node.windowSpec().frameSpecification()
        if called.nodeName() == "AggregateExpression":
            called = called.aggregateFunction()
        rows = called.nodeName() not in _RANKS and frame.frameType().toString() == "RowFrame"
        return Doubt(DoubtKind.WINDOW, called.prettyName(), self._place(node), rows, collation)

    def _groups(self, outputs: Any) -> Iterator[Doubt]:
        """Yield the values of groups of which each row may give another: those outside of aggregates."""
        for each in _each(outputs):
            if each.nodeName() != "AggregateExpression":
                yield from self._chosen("GROUP BY", each, [each])
                yield from self._groups(each.children())

    def _chosen(self, name: str, at: Any, values: Iterable[Any]) -> Iterator[Doubt]:
        """Yield the first of ``values`` that has equal texts which differ: ``name`` keeps one of them."""
        collation = next(filter(None, map(_collation, values)), "")
        if collation:
            yield Doubt(DoubtKind.COLLATION, name, self._place(at), collation=collation)

    def _place(self, node: Any) -> Position | None:
        start = node.origin().startIndex()
        return self.place(start.get()) if start.isDefined() else None


def _each(sequence: Any) -> Iterator[Any]:
    """Yield what a sequence of Scala's holds."""
    return map(sequence.apply, range(sequence.size()))


def _below(window: Any) -> Any:
    """Return what gives the rows of ``window``: Spark puts a projection of its own between, of what windows need."""
    node = window
    while node.nodeName() == "Window":
        node = node.child()
    return node.child() if node.nodeName() == "Project" else node


def _collation(expression: Any) -> str:
    """Return the collation of a text in the value of ``expression``; empty if equal texts in it are the same."""
    found = _COLLATED.search(expression.dataType().sql())
    return "" if found is None else found[1]


T = TypeVar("T")

_OPEN: Final = "SELECT * FROM (\n"
_CLOSE: Final = "\n)"
"""Between these a text can only be a query: a command, which Spark would run as soon as it reads it, does not parse."""


@dataclass(frozen=True, slots=True)
class _Analysed:
    """A query that Spark has analysed, and its plan as JSON: to write that takes a third as long as to analyse it."""

    query: DataFrame
    json: str


class SparkAnalyst:
    """Answers what a query's columns are.  Safe to call from several threads; one analysis at a time."""

    def __init__(
        self, session: SparkSession, functions: Functions | None = None, workers: Workers | None = None
    ) -> None:
        """``workers``: the Python of executors, which runs ``functions``, if that is another than this one."""
        self._session = sibling(session, {})
        self._given = functions
        self._workers = workers
        self.functions: frozenset[str] = frozenset()
        if functions is not None:
            functions.learn(self._session)
            self.functions = functions.names
        self._lock = threading.Lock()
        self._empties: dict[str, DataFrame] = {}
        self._last: tuple[tuple[str, Mapping[str, str]], _Analysed] | None = None
        self._named: dict[str, str] = {}  # the views that there are, and their column lists

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        """Return the schema of the query ``sql``, in which the names of ``relations`` stand for collections.

        What ``ours`` reaches is not looked at (`reach.refuse`): it reads what the author's text reads, which was.

        Raises:
            DefinitionError: Spark cannot parse or resolve it, or a column has a type that no collection can hold.
        """
        with self._over(relations):
            if ours:
                return _kept(schema_of(_asked(self._session, sql, list(relations), self._session.sql).schema))
            return _kept(schema_of(self._analysed(sql, relations).query.schema))

    def same(self, sql: str, other: str, relations: Mapping[str, Schema]) -> bool:
        """Tell whether ``sql``, which is accepted, and ``other``, which may not be, are the same query to Spark.

        They are if Spark parses them alike (`catalyst.alike`), which takes no analysis; or if their analysed plans are
        the same, or become so by Spark's own rewriting (``1L``, ``CAST(1 AS BIGINT)``).  Names of relations and of
        columns on the way do not count.

        Constants are computed first, since more rewriting may give one query several plans: Spark puts several DISTINCT
        aggregates into an order that it draws anew each time.
        """
        with self._over(relations):
            if catalyst.alike(self._session, sql, other):
                return True
            one = self._analysed(sql, relations).query
            try:
                two = _asked(self._session, other, list(relations), self._session.sql)  # it runs only if it is the same
            except DefinitionError:
                return False
            return any(_alike(one, two, rewritten) for rewritten in (_numbered, _folded, _simplified, _optimised))

    def doubts(self, sql: str, relations: Mapping[str, Schema], *, ordering: bool) -> tuple[Doubt, ...]:
        """Return what may leave ``sql``, which is accepted, without one answer; ``ordering``: see `doubts`."""
        with self._over(relations):
            found = self._analysed(sql, relations)
            place = partial(_placed, sql)
            return tuple(doubts(found.query, found.json, place, ordering=ordering))

    def compared(self, left: str, right: str) -> str | None:
        """See `Analyst.compared`: Spark's analyser has cast both sides of an equality."""
        with self._lock:
            try:
                asked = self._empty(f"a {left}, b {right}").selectExpr("a = b")
            except PySparkException:
                return None
            # No public call tells what Spark's analyser made of an expression.
            equality = asked._jdf.queryExecution().analyzed().expressions().head().child()  # noqa: SLF001 - see above
            one, other = equality.left().dataType().sql(), equality.right().dataType().sql()
        try:
            return self.parse_ddl(f"a {one}").columns[0].type if one == other else None
        except DefinitionError:
            return None

    def made(self, question: tuple[Any, ...], make: Callable[[], T]) -> T:
        """See `Analyst.made`: nothing is remembered here."""
        return make()

    def parse_ddl(self, ddl: str) -> Schema:
        """Return the schema that a column list writes: ``a INT, b ARRAY<STRING>``."""
        with self._lock:
            try:
                listed = StructType.fromDDL(ddl)
            except PySparkException as error:
                raise DefinitionError(f"not a column list: {sentence(str(error))}") from error
        if not isinstance(listed, StructType):
            raise DefinitionError(f"not a column list: {ddl}")
        return _kept(schema_of(listed))

    def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
        """Raise `DefinitionError` if a step could not run over ``frames``, or gave other columns than ``stored``.

        ``frames``: for each frame that they read the columns of the collection, without time and diff.

        What they read is not looked at (`reach.refuse`): it is what the author's text reads, which was.
        """
        views = {name: f"{RESERVED}frame_{n}" for n, name in enumerate(sorted(frames))}
        columns = {views[name]: f"{schema.ddl}, {TIME} bigint, {DIFF} bigint" for name, schema in frames.items()}
        texts = [render(step, views) for step in steps]
        with self._views(columns):
            found = _asked(self._session, _beside_each_other(texts), list(views.values()), self._session.sql)
            self._refuse_unrunnable(found)
            given = found.schema.fields
            try:
                _optimised(found)
            except Exception as error:
                if not is_sparks(error):  # its own mistakes come as what they are
                    raise
                raise DefinitionError(f"Spark parses this query and cannot plan it: {thrown(error)}") from error
        for step in steps:
            own, given = given[: len(step.names)], given[len(step.names) + len((TIME, DIFF)) :]
            types_ = {each.name: each for each in own}
            if (got := schema_of(StructType([types_[name] for name in stored.names]))) != stored:
                raise DefinitionError(f"a step of the view would give ({got.ddl}) and not ({stored.ddl})")

    def _refuse_unrunnable(self, found: DataFrame) -> None:
        """Raise `DefinitionError` if the plan calls a function of Python that executors cannot run."""
        if self._workers is None or self._given is None or not self.functions:
            return
        for name in sorted(self.functions & reach.python_called(found)):
            lack = self._workers.lack_of(name, self._given.code(name), self._given.libraries(name))
            if lack is not None:
                raise DefinitionError(
                    f"the function {name!r} runs in the Python of executors, and cannot there, since {lack}; "
                    f"{PYTHON_KEY} names their Python"
                )

    def _analysed(self, sql: str, relations: Mapping[str, Schema]) -> _Analysed:
        """Return an author's text over these relations: that of the question before, if it was about the same."""
        asked = sql, {name: each.ddl for name, each in relations.items()}
        if self._last is None or self._last[0] != asked:
            query = _asked(self._session, sql, list(relations), self._session.sql)
            json = reach.analysed_json(query)
            reach.refuse_plan(json, kept=True)
            self._last = asked, _Analysed(query, json)
        return self._last[1]

    def _empty(self, ddl: str) -> DataFrame:
        """Return the relation without rows; made once, since a planner asks for the same few again and again.

        It is made in the JVM, in a few calls; the public one takes dozens.  To the optimiser it is an RDD, which may
        have rows: of a relation that it knows to be empty it would plan nothing.
        """
        if ddl not in self._empties:
            jvm: Any = self._session._jvm  # noqa: SLF001 - see above
            columns = jvm.org.apache.spark.sql.types.StructType.fromDDL(ddl)
            rows = self._session.sparkContext._jsc.emptyRDD().rdd()  # noqa: SLF001
            made = self._session._jsparkSession.applySchemaToPythonRDD(rows, columns.json())  # noqa: SLF001
            self._empties[ddl] = DataFrame(made, self._session)
        return self._empties[ddl]

    @contextmanager
    def _over(self, relations: Mapping[str, Schema]) -> Iterator[None]:
        """Let the names of ``relations`` stand for empty collections meanwhile."""
        with self._views({name: each.ddl for name, each in relations.items()}):
            yield

    @contextmanager
    def _views(self, columns: Mapping[str, str]) -> Iterator[None]:
        """Let there be these empty views and no others.  They stay: the next question is most often about the same."""
        with self._lock:
            for name in sorted(self._named.keys() - columns.keys()):
                self._session.catalog.dropTempView(name)
                del self._named[name]
            for name, ddl in columns.items():
                if self._named.get(name) != ddl:
                    self._empty(ddl).createOrReplaceTempView(quote(name))
                    self._named[name] = ddl
            yield


def analysed(session: SparkSession, sql: str, names: Sequence[str], given: Sequence[pa.Scalar] = ()) -> DataFrame:
    """Return the query ``sql`` over ``session``'s views ``names``, analysed and not run.

    ``given``: the values of its question marks.

    Raises:
        DefinitionError: Spark cannot parse or resolve it, it is not a query, or it reaches outside (`reach`).
        InvalidUsage: Spark has no value for one of ``given``.
    """
    ask = partial(expressions.query, session, given=given) if given else session.sql
    query = _asked(session, sql, names, ask)
    reach.refuse(query)
    return query


def described(session: SparkSession, sql: str, names: Sequence[str], count: int, limits: Collection[int]) -> Described:
    """Return what the query ``sql`` with ``count`` parameters is answered with, and what they are.

    Raises as `analysed`.
    """
    return _asked(session, sql, names, partial(expressions.of_query, session, count=count, limits=limits))


def _asked(session: SparkSession, sql: str, names: Sequence[str], ask: Callable[[str], T]) -> T:
    """Return what ``ask`` has Spark make of the query ``sql``.

    Raises what Spark refuses as a `DefinitionError`, and `Unavailable` if Spark or its machine failed meanwhile.
    """
    try:
        reach.refuse_unread(session, _OPEN + sql + _CLOSE)
        return ask(_OPEN + sql + _CLOSE)
    except ParseException as error:
        raise _unparsed(session, error, sql) from error
    except PySparkException as error:
        raise refusal(error, sql, names, before=len(_OPEN)) from error
    except Exception as error:
        if not is_sparks(error):  # its own mistakes come as what they are
            raise
        failed = as_ours(error)
        if isinstance(failed, Unavailable) and not isinstance(failed, Unsettled):
            if any(each.is_a("java.lang.StackOverflowError") for each in causes(error)):
                raise DefinitionError(
                    "this query is nested too deeply for Spark; write it with fewer levels"
                ) from error
            raise failed from error
        raise DefinitionError(f"Spark cannot analyse this query: {thrown(error)}") from error


def _placed(sql: str, index: int) -> Position | None:
    """Return where a character of what Spark was asked is in ``sql``."""
    return place_in(sql, index - len(_OPEN))


def _beside_each_other(texts: Sequence[str]) -> str:
    """Return one query with the columns of all of these: no column is cast to fit another text's."""
    return texts[0] if len(texts) == 1 else "SELECT * FROM " + " CROSS JOIN ".join(f"(\n{each}\n)" for each in texts)


def _alike(one: DataFrame, two: DataFrame, rewritten: Callable[[DataFrame], Any]) -> bool:
    """Tell whether two queries have the same plan once it is ``rewritten``; not if Spark cannot do that."""
    try:
        return bool(rewritten(one).sameResult(rewritten(two)))
    except Exception as error:
        if not is_sparks(error):  # its own mistakes come as what they are
            raise
        return False  # such as a constant without a value


def _numbered(query: DataFrame) -> Any:
    """Return the analysed plan with its common table expressions numbered from 0: Spark never gives a number again."""
    plan: Any = query._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public call applies one rule
    return _rule(query, "normalizer.NormalizeCTEIds").apply(plan)


def _folded(query: DataFrame) -> Any:
    """Return this plan with its constants computed."""
    return _rule(query, "optimizer.ConstantFolding").apply(_numbered(query))


def _simplified(query: DataFrame) -> Any:
    """Return this plan with its conditions simplified."""
    return catalyst.simplified(query.sparkSession, _folded(query))


def _rule(query: DataFrame, name: str) -> Any:
    return catalyst.singleton(query.sparkSession, f"org.apache.spark.sql.catalyst.{name}")


def _optimised(query: DataFrame) -> Any:
    return query._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - no public call compares optimised plans


def _unparsed(session: SparkSession, error: ParseException, sql: str) -> DefinitionError:
    """Return why ``sql`` alone does not parse, for our parentheses would show in Spark's reason.

    It asks the JVM's own parser: no public call parses a text without running what it says.
    """
    try:
        session._jsparkSession.sessionState().sqlParser().parsePlan(sql)  # noqa: SLF001 - see the docstring
    except ParseException as alone:
        return refusal(alone, sql, ())
    return DefinitionError(f"one query is expected here, and this is something else: {sentence(str(error))}")


def _kept(schema: Schema) -> Schema:
    if not schema.columns:
        raise DefinitionError("a collection needs at least one column")
    types.columns(schema)  # refuses, by the column's name, what no collection can hold
    return schema
