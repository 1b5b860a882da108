"""The authority on types: Spark analyses a query over empty relations, and no job runs.

What Spark refuses becomes a `DefinitionError` with the position in the caller's text, and with names that are similar.
The analyst works in a session of its own, so that its temporary views never replace those of another user.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import ParseException, PySparkException, QueryContextType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strandline.algebra import types
from strandline.algebra.doubts import Doubt
from strandline.algebra.nodes import Node
from strandline.algebra.schema import DIFF, RESERVED, TIME, Schema, quote
from strandline.engine.frames.ddl import schema_of
from strandline.engine.frames.failures import is_sparks, thrown
from strandline.engine.session.functions import Functions
from strandline.engine.session.start import adopt
from strandline.engine.sql.doubts import doubts
from strandline.engine.sql.rendering import render
from strandline.errors import DefinitionError, Position

_OPEN: Final = "SELECT * FROM (\n"
_CLOSE: Final = "\n)"
"""Between these a text can only be a query: a command, which Spark would run as soon as it reads it, does not parse."""
_PARSE_POSITION: Final = re.compile(r"\(line (\d+), pos(?:ition)? (\d+)\)")
_STATE_AND_TRACE: Final = re.compile(r"\s*SQLSTATE:.*", re.DOTALL)
_CANDIDATES_MAX: Final = 3
_PROPOSED_MAX: Final = 5
"""How many columns Spark proposes at most, of all that there are."""
_LIKENESS_MIN: Final = 0.6


class SparkAnalyst:
    """Answers what a query's columns are.  Safe to call from several threads; one analysis at a time."""

    def __init__(self, session: SparkSession, functions: Functions | None = None) -> None:
        self._session = adopt(session)
        self.functions: frozenset[str] = frozenset()
        if functions is not None:
            functions.learn(self._session)
            self.functions = functions.names
        self._lock = threading.Lock()
        self._empties: dict[str, DataFrame] = {}
        self._named: dict[str, str] = {}  # the views that there are, and their column lists

    def schema_of(self, sql: str, relations: Mapping[str, Schema]) -> Schema:
        """Return the schema of the query ``sql``, in which the names of ``relations`` stand for collections.

        Raises:
            DefinitionError: Spark cannot parse or resolve it, or a column has a type that no collection can hold.
        """
        with self._over(relations):
            return _kept(schema_of(analysed(self._session, sql, list(relations)).schema))

    def same(self, sql: str, other: str, relations: Mapping[str, Schema]) -> bool:
        """Tell whether ``sql``, which is accepted, and ``other``, which may not be, are the same query to Spark.

        They are if their analysed plans are, or become the same by Spark's own rewriting (``1L``, ``CAST(1 AS
        BIGINT)``).  Names of relations and of columns on the way do not count.

        Constants are computed first, since more rewriting may give one query several plans: Spark puts several DISTINCT
        aggregates into an order that it draws anew each time.
        """
        with self._over(relations):
            one = analysed(self._session, sql, list(relations))
            try:
                two = analysed(self._session, other, list(relations))
            except DefinitionError:
                return False
            return one.sameSemantics(two) or _alike(one, two, _folded) or _alike(one, two, _optimised)

    def doubts(self, sql: str, relations: Mapping[str, Schema], *, ordering: bool) -> tuple[Doubt, ...]:
        """Return what may leave ``sql``, which is accepted, without one answer; ``ordering``: see `doubts.doubts`."""
        with self._over(relations):
            query = analysed(self._session, sql, list(relations))
            return tuple(doubts(query, lambda index: _at(sql, index - len(_OPEN)), ordering=ordering))

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

    def parse_ddl(self, ddl: str) -> Schema:
        """Return the schema that a column list writes: ``a INT, b ARRAY<STRING>``."""
        with self._lock:
            try:
                listed = StructType.fromDDL(ddl)
            except PySparkException as error:
                raise DefinitionError(f"not a column list: {_sentence(str(error))}") from error
        if not isinstance(listed, StructType):
            raise DefinitionError(f"not a column list: {ddl}")
        return _kept(schema_of(listed))

    def rehearse(self, step: Node, frames: Mapping[str, Schema], stored: Schema) -> None:
        """Raise `DefinitionError` if ``step`` could not run over ``frames``, or gave other columns than ``stored``.

        ``frames``: for each frame that it reads the columns of the collection, without time and diff.
        """
        views = {name: f"{RESERVED}frame_{n}" for n, name in enumerate(sorted(frames))}
        columns = {views[name]: f"{schema.ddl}, {TIME} bigint, {DIFF} bigint" for name, schema in frames.items()}
        with self._views(columns):
            found = analysed(self._session, render(step, views), list(views.values()))
            given = schema_of(found.select(*map(quote, stored.names)).schema)
            try:
                _optimised(found)
            except Exception as error:
                if not is_sparks(error):  # its own mistakes come as what they are
                    raise
                raise DefinitionError(f"Spark parses this query and cannot plan it: {thrown(error)}") from error
        if given != stored:
            raise DefinitionError(f"a step of the view would give ({given.ddl}) and not ({stored.ddl})")

    def _empty(self, ddl: str) -> DataFrame:
        """Return the relation without rows; made once, since a planner asks for the same few again and again."""
        if ddl not in self._empties:
            self._empties[ddl] = self._session.createDataFrame([], ddl)
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


def analysed(session: SparkSession, sql: str, names: Sequence[str]) -> DataFrame:
    """Return the query ``sql`` over ``session``'s views ``names``, analysed and not run.

    Raises:
        DefinitionError: Spark cannot parse or resolve it, or it is not a query.
    """
    try:
        return session.sql(_OPEN + sql + _CLOSE)
    except ParseException as error:
        raise _unparsed(session, error, sql) from error
    except PySparkException as error:
        raise refusal(error, sql, names, before=len(_OPEN)) from error
    except Exception as error:
        if is_sparks(error) and "java.lang.StackOverflowError" in str(error):
            raise DefinitionError("this query is nested too deeply for Spark; write it with fewer levels") from error
        raise


def _alike(one: DataFrame, two: DataFrame, rewritten: Callable[[DataFrame], Any]) -> bool:
    """Tell whether two queries have the same plan once it is ``rewritten``; not if Spark cannot do that."""
    try:
        return bool(rewritten(one).sameResult(rewritten(two)))
    except Exception as error:
        if not is_sparks(error):  # its own mistakes come as what they are
            raise
        return False  # such as a constant without a value


def _folded(query: DataFrame) -> Any:
    """Return the analysed plan with its constants computed."""
    jvm = query.sparkSession._jvm  # noqa: SLF001 - no public call applies one rule of the optimiser
    assert jvm is not None, "the session runs in this process"
    rule = getattr(jvm.org.apache.spark.sql.catalyst.optimizer, "ConstantFolding$").__getattr__("MODULE$")
    return rule.apply(query._jdf.queryExecution().analyzed())  # noqa: SLF001 - as above


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
    return DefinitionError(f"one query is expected here, and this is something else: {_sentence(str(error))}")


def _kept(schema: Schema) -> Schema:
    if not schema.columns:
        raise DefinitionError("a collection needs at least one column")
    types.columns(schema)  # refuses, by the column's name, what no collection can hold
    return schema


def refusal(error: PySparkException, sql: str, names: Sequence[str], *, before: int = 0) -> DefinitionError:
    """Return what Spark said in one sentence, with the position in the caller's ``sql``.

    ``names`` are the relations that there are; ``before``: how many characters of the text that Spark read come before
    ``sql``.
    """
    if isinstance(error, ParseException):
        found = _PARSE_POSITION.search(str(error))
        place = Position(int(found[1]), int(found[2]) + 1) if found else None  # Spark counts columns from 0
        return DefinitionError(_sentence(str(error)), place)
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    position = _position(error, sql, before)
    if condition.startswith("UNRESOLVED_COLUMN"):
        missing = _bare(parameters.get("objectName"))
        proposed = _bare(parameters.get("proposal")).split(", ")
        some = len(proposed) >= _PROPOSED_MAX
        return DefinitionError(f"unknown column {missing}{_candidates(missing, proposed, some=some)}", position)
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        missing = _bare(parameters.get("relationName"))
        return DefinitionError(f"unknown relation {missing}{_candidates(missing, names)}", position)
    return DefinitionError(_sentence(str(error)), position)


def _position(error: PySparkException, sql: str, before: int) -> Position | None:
    for context in error.getQueryContext():
        if context.contextType() is QueryContextType.SQL and context.objectType() == "":
            return _at(sql, context.startIndex() - before)
    return None


def _at(sql: str, index: int) -> Position | None:
    if not 0 <= index <= len(sql):
        return None
    before = sql[:index]
    return Position(before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1)


def _candidates(missing: str, names: Sequence[str], *, some: bool = False) -> str:
    """Return which of ``names`` may be meant by ``missing``; if none, all of them (``some``: there may be others)."""
    names = [name for name in names if name]
    near = difflib.get_close_matches(missing, names, n=_CANDIDATES_MAX, cutoff=_LIKENESS_MIN)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there is {', '.join(sorted(names))}{', among others' if some else ''}" if names else ""


def _bare(name: str | None) -> str:
    return (name or "").replace("`", "")


def _sentence(text: str) -> str:
    """Return Spark's sentence without its error class, its state code and the trace and plan that follow.

    >>> _sentence("[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 1, pos 9)")
    "Syntax error at or near 'FORM'."
    """
    return _STATE_AND_TRACE.sub("", re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", text.strip())).splitlines()[0]
