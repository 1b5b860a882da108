"""The desk: what a server does for its clients with the environment that is open here, whatever carries the calls.

Reads are strict serializable: an answer reflects every commit that any client of this desk was told of before it asked.
So a read of a view waits for the tick that brings the view to the last commit, and asks for that tick at once.

The result of a query is whole before any of it is sent: so an error comes first, and what was read is held no longer.
It is kept until it is fetched or `RESULT_IDLE_S` have passed, most of it in a temporary file (`Environment.answer`).
`RESULT_BYTES_MAX` and `RESULT_ROWS_MAX` bound one, `RESULTS_BYTES_MAX` all that wait or are sent, and `QUERIES_MAX` how
many are computed at a time.  How large a result is shows when it is computed: `FILES_BYTES_MAX` is what all of them may
have then.

Laws: E1, E2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
from sqlglot import exp

from strandline.algebra.arrow_types import arrow_schema, spark_type
from strandline.algebra.schema import DIFF, TIME, Schema
from strandline.client import Cancel, Environment, Events, Transaction, ended_by, present
from strandline.compute.plan.sql import parse
from strandline.controller.asking.reads import NotYetError
from strandline.controller.language import arguments, statements
from strandline.errors import InvalidUsage, Unavailable
from strandline.instance.indexes.keys import packed
from strandline.plane import CATCHES_UP, at_stage
from strandline.serving import parameters
from strandline.serving.kept import Held, Kept
from strandline.serving.parameters import identifier
from strandline.serving.traffic import CHANGE, QUERY, Traffic, one_statement
from strandline.store.clock import Clock, Ids

T = TypeVar("T")

QUERIES_MAX: Final = 8
"""So many queries are computed at a time; others wait for their turn."""
TURN_S: Final = 30.0
"""For so long a query waits for its turn."""
CATCHING_UP_S: Final = 60.0
"""For so long a read waits until what it reads has come to the last commit."""
LOOK_S: Final = 0.2
RESULT_BYTES_MAX: Final = 4 << 30
"""Bytes of a result, as Arrow has them."""
RESULT_ROWS_MAX: Final = 100_000_000
UNCOUNTED: Final = -1
"""What Flight SQL calls a number of changed rows that is not known."""
RESULTS_BYTES_MAX: Final = 8 << 30
"""Bytes of all results that are computed, until the last row of each was sent, or the tick after `RESULT_IDLE_S`."""
FILES_BYTES_MAX: Final = RESULTS_BYTES_MAX + QUERIES_MAX * RESULT_BYTES_MAX
"""Bytes of all results, with those that are being computed: where temporary files are there should be such room."""
RESULT_IDLE_S: Final = 60.0
RESULTS_MAX: Final = 100
ROWS_BYTES_MAX: Final = 256 << 20
"""Bytes of rows, as Arrow has them, that one call may insert."""
ANSWERED: Final = pa.schema([("committed_at", pa.int64())])
"""What a statement answers with: the time of its commit; NULL if it changed definitions, or commits later."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that was prepared, in which transaction (empty: in none), and the rows of its parameters.

    ``rows``: None: no parameters were sent.

    ``done``: it has changed something with these rows.  The JDBC driver asks for a result after that, if it got no
    count, and must not run it again.
    """

    text: str
    transaction: bytes
    rows: pa.Table | None = None
    done: bool = False


Resolve: TypeAlias = Callable[[statements.Statement], statements.Statement]
"""Returns a statement with the names of a project's endpoints, and paths in it, as they are meant."""


def as_it_is(statement: statements.Statement) -> statements.Statement:
    """Return it."""
    return statement


class Desk:
    """See the module.  Calls may come from any thread."""

    def __init__(
        self, env: Environment, clock: Clock, ids: Ids, hurry: Callable[[], None], resolve: Resolve = as_it_is
    ) -> None:
        """``hurry``: asks the loop that makes ticks for one now.  ``resolve``: see `Resolve`."""
        self._resolve = resolve
        self.env = env
        self.traffic = Traffic(clock)
        self.served: Mapping[str, Any] | None = None
        """Where this desk is served, as `Addresses.told` says it."""
        self._hurry = hurry
        self._acknowledged = 0
        self._ticked = threading.Condition()
        self._ticks = 0
        self._turns = threading.BoundedSemaphore(QUERIES_MAX)
        self._clock = clock
        self._transactions = Kept[Transaction](clock, ids, "transaction")
        self._prepared = Kept[Prepared](clock, ids, "prepared statement", oldest_goes=True)
        self._cancels: dict[str, Cancel] = {}
        self._results = Kept[pa.Table](clock, ids, "result", idle_s=RESULT_IDLE_S, count_max=RESULTS_MAX)
        # Most clients never fetch the answer of a statement that changes something.
        self._answers = Kept[pa.Table](clock, ids, "answer", idle_s=RESULT_IDLE_S, oldest_goes=True)
        self._held = Held(RESULTS_BYTES_MAX)

    @property
    def results_bytes(self) -> int:
        """Bytes of the results that wait or are sent."""
        return self._held.bytes

    def ticked(self) -> None:
        """A tick has ended: what waited for it goes on, and what no client has asked for is dropped."""
        self._results.expire()
        self._answers.expire()
        self._transactions.expire()
        self._prepared.expire()
        with self._ticked:
            self._ticks += 1
            self._ticked.notify_all()

    def tick(self) -> int:
        """Have a tick made now; return the time at which everything is complete then that has no problem."""
        with self._ticked:
            ticks = self._ticks
            self._hurry()
            self._ticked.wait_for(lambda: self._ticks > ticks + 1, CATCHING_UP_S)  # one may be under way
        return int(self.env.progress()["complete"])

    def sync(self, ts: int, timeout: float | None = None) -> None:
        """Return once everything that has no problem is complete at ``ts``."""
        begun = self._clock.now_ms()
        while (complete := self.env.progress()["complete"]) < ts:
            late = NotYetError(f"not everything is complete at {ts} yet, but at {complete}")
            if timeout is not None and self._clock.now_ms() - begun > 1000 * timeout:
                raise late
            self._wait(late, begun)

    # ---- statements --------------------------------------------------------------------------------------------------

    def asked(self, text: str, transaction: bytes = b"") -> tuple[bytes, pa.Schema, int]:
        """Run a statement; return the handle of its result, and the result's schema and number of rows."""
        statement = statements.parse(text)
        return self._put(self._run(statement, transaction), statement)

    def fetched(self, handle: bytes) -> pa.Table:
        """Return a result, once."""
        return (self._answers if self._answers.has(handle) else self._results).take(handle)

    @one_statement(CHANGE)
    def executed(self, said: str | statements.Statement, transaction: bytes = b"") -> int | None:
        """Run a statement that changes something; return the time of its commit, as `ANSWERED` says."""
        statement = self._resolve(arguments.statement(said))
        if isinstance(statement, statements.Question):
            raise InvalidUsage("a query returns rows, and changes nothing: ask for its rows instead")
        if isinstance(statement, statements.Bracket):
            raise InvalidUsage(f"{statement.word} cannot be sent: the client has calls to begin and end a transaction")
        if transaction:
            self._transactions.get(transaction).execute(statement)
            return None
        with self.traffic.step("execute"):
            return self._acknowledge(self.env.execute(statement))

    @one_statement(CHANGE)
    def counted(self, found: Sequence[statements.Statement], transaction: bytes = b"") -> int:
        """Run statements that change one table, at one time; return how many rows they have changed.

        Of a statement in a transaction that is 0, unless it inserts VALUES: it changes nothing before the commit.
        `UNCOUNTED`: they are committed, and Spark could not count the rows.
        """
        if not found:
            return 0
        updates = any(isinstance(statement, statements.Update) for statement in found)
        if transaction or (len(found) == 1 and not updates):
            time = [self.executed(statement, transaction) for statement in found][-1]
        else:
            together = self.env.begin()
            for statement in found:
                together.execute(statement)
            time = self._committed(together)
            if updates:
                return UNCOUNTED if (count := together.updated()) is None else count
        known = [_inserts(statement) for statement in found]
        if None not in known:
            return sum(filter(None, known))
        match found[0]:
            case statements.Insert(table=table) | statements.Delete(table=table):
                sign = -1 if isinstance(found[0], statements.Delete) else 1
                return 0 if time is None else self._changed_at(table, time, sign)
        return 0

    def _changed_at(self, table: str, time: int, sign: int) -> int:
        changes = self.env.collection(table).changes(time, time + 1).selectExpr(f"__diff * {sign} AS n").collect()
        return sum(row.n for row in changes if row.n > 0)

    def create(self, table: str, columns: pa.Schema) -> None:
        """Make a table for rows with these columns, unless it is there."""
        quoted = ", ".join(f"{identifier(column.name)} {spark_type(column.name, column.type)}" for column in columns)
        self.env.execute(f"CREATE TABLE IF NOT EXISTS {identifier(table)} ({quoted})")

    @one_statement(CHANGE)
    def changed(
        self,
        table: str,
        rows: Iterable[pa.RecordBatch],
        transaction: bytes = b"",
        token: str | None = None,
        *,
        deletes: bool = False,
    ) -> tuple[int, int | None]:
        """Insert rows into a table, or delete them from it, all or nothing; return how many, and when."""
        with self.traffic.step("receive"):
            given = _bounded(rows)
        together = self._transactions.get(transaction) if transaction else self.env.begin(token)
        if given.num_rows:
            with self.traffic.step("stage"):
                (together.delete if deletes else together.insert)(table, given)
        time = None if transaction else self._committed(together)
        return int(given.num_rows), time

    def tables(self) -> dict[str, tuple[str, Schema]]:
        """Return the kind and the schema of every collection, by name."""
        return self.env.collections()

    def _run(self, statement: statements.Statement, transaction: bytes) -> pa.Table:
        if isinstance(statement, statements.Question):
            return self.answer(statement)[0]
        return _answered(self.executed(statement, transaction))

    def _committed(self, transaction: Transaction) -> int | None:
        with self.traffic.step("commit"):
            return self._acknowledge(transaction.commit())

    def _acknowledge(self, time: int | None) -> int | None:
        if time is not None:
            with self._ticked:
                self._acknowledged = max(self._acknowledged, time)
        return time

    @one_statement(QUERY)
    def answer(
        self,
        question: str | statements.Question,
        as_of: int | None = None,
        handle: str = "",
        timeout: float | None = None,
    ) -> tuple[pa.Table, int | None]:
        """Return the rows that a query is answered with, and the time at which they are true.

        They count in `results_bytes` until nothing refers to the table.

        ``handle``: under which the client may cancel it; empty: it will not.  ``timeout``: see `Environment.answer`.
        """
        found = arguments.question(question)
        text = found.text if isinstance(found, statements.Query) else f"SHOW {found.what.name}"
        with self.cancellable(handle) as cancel, self.env.listed(text, cancel), self._turn(cancel):
            table, time = self._caught_up(found, as_of, cancel, timeout)
            self._results.expire()
            table = self._held.hold(table)
        return table, time

    @contextmanager
    def cancellable(self, handle: str) -> Iterator[Cancel]:
        """Have `cancel` end what is asked inside, and yield what ends it; empty: `cancel` does not."""
        cancel = present()
        if handle:
            self._cancels[handle] = cancel
        try:
            with ended_by(cancel):
                yield cancel
        finally:
            self._cancels.pop(handle, None)

    def cancel(self, handle: str) -> bool:
        """Cancel a call that is computed, or waits; return whether there was one with this handle."""
        cancel = self._cancels.get(handle)
        if cancel is not None:
            cancel()
        return cancel is not None

    def peek(self, **arguments: Any) -> pa.Table:
        """See `Environment.peek`; a view that was defined a moment ago is waited for."""
        return self._once_there(partial(self.env.peek, **arguments))

    def _caught_up(
        self, question: statements.Question, as_of: int | None, cancel: Cancel, timeout: float | None
    ) -> tuple[pa.Table, int | None]:
        least = self._acknowledged if as_of is None else 0

        def answer() -> tuple[pa.Table, int | None]:
            if cancel.called:
                raise cancel.error()
            with self.traffic.step("answer"):
                return self.env.answer(
                    question,
                    as_of,
                    least,
                    cancel=cancel,
                    timeout=timeout,
                    bytes_max=RESULT_BYTES_MAX,
                    rows_max=RESULT_ROWS_MAX,
                )

        return self._once_there(answer)

    def _once_there(self, ask: Callable[[], T]) -> T:
        """Ask until what is read is at the time that is asked for, or that takes too long."""
        begun = self._clock.now_ms()
        while True:
            try:
                return ask()
            except NotYetError as error:
                with self.traffic.step("wait"):
                    self._wait(error, begun)

    def _wait(self, error: NotYetError, begun: int) -> None:
        if self._clock.now_ms() - begun > 1000 * CATCHING_UP_S:
            progress = self.env.progress()
            why = "; ".join(f"{name}: {each}" for name, each in (progress["problems"] | progress["waiting"]).items())
            raise Unavailable(f"{error}" + (f" ({why})" if why else "")) from error
        at_stage(CATCHES_UP)
        with self._ticked:
            self._hurry()
            self._ticked.wait(LOOK_S)

    @contextmanager
    def _turn(self, cancel: Cancel) -> Iterator[None]:
        with self.traffic.step("turn"):
            begun = self._clock.now_ms()
            while not (taken := self._turns.acquire(timeout=LOOK_S)):
                if cancel.called:
                    raise cancel.error()
                if self._clock.now_ms() - begun > 1000 * TURN_S:
                    break
        if not taken:
            raise Unavailable(f"{QUERIES_MAX} queries are computed already, and none has ended within {TURN_S:g} s")
        try:
            yield
        finally:
            self._turns.release()

    def _put(self, table: pa.Table, of: statements.Statement) -> tuple[bytes, pa.Schema, int]:
        kept = self._results if isinstance(of, statements.Question) else self._answers
        return kept.put(table), table.schema, table.num_rows

    def followed(self, what: str, as_of: int | None, until: int | None) -> tuple[pa.Schema, Events]:
        """Subscribe; return the columns of the updates, and what comes: see `Environment.subscribe`.  Close it."""
        known = {name.lower(): schema for name, (_, schema) in self.tables().items()}.get(what.lower())
        columns = self.columns(what) if known is None else arrow_schema(known)
        updates = [*columns.remove_metadata(), pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64())]
        return pa.schema(updates), self.env.subscribe(what, as_of, until)

    # ---- prepared statements -----------------------------------------------------------------------------------------

    def prepare(self, text: str, transaction: bytes = b"") -> tuple[bytes, pa.Schema | None, pa.Schema]:
        """Keep a statement; return its handle, its result's schema, and that of its parameters.

        The schema is None for a statement that changes something, by which clients tell it from a query.
        """
        statement, asked = statements.parse(text), parameters.count(text)
        schema, types = None, list[pa.DataType]()
        if asked or isinstance(statement, statements.Question):
            schema, types = self._once_there(partial(self.env.prepared, statement))
        if len(types) != asked:  # VALUES with more cells than columns
            types = [pa.string()] * asked
        shape = pa.schema([(str(number), kind) for number, kind in enumerate(types, start=1)])
        return self._prepared.put(Prepared(text, transaction)), schema, shape

    def columns(self, text: str) -> pa.Schema:
        """Return the columns that a statement would be answered with; it does not run."""
        columns, _ = self._once_there(partial(self.env.prepared, statements.parse(text)))
        return ANSWERED if columns is None else columns

    def columns_prepared(self, handle: bytes) -> pa.Schema:
        """As `columns`, of a prepared statement."""
        return self.columns(self._prepared.get(handle).text)

    def bind(self, handle: bytes, batches: Iterable[pa.RecordBatch]) -> None:
        """Give a prepared statement its parameters: a row for each time that it is to run."""
        rows = _bounded(batches)
        self._prepared.change(handle, lambda prepared: replace(prepared, rows=rows, done=False))

    def unprepare(self, handle: bytes) -> None:
        """Keep a prepared statement no longer."""
        self._prepared.drop(handle)

    def asked_prepared(self, handle: bytes) -> tuple[bytes, pa.Schema, int]:
        """As `asked`, of a prepared statement."""
        prepared = self._prepared.get(handle)
        statement = statements.parse(prepared.text)
        return self._put(self._run_bound(prepared, statement), statement)

    def _run_bound(self, prepared: Prepared, statement: statements.Statement) -> pa.Table:
        if prepared.done:
            return _answered(None)
        bound = _bound(prepared, statement)
        if len(bound) == 1:
            return self._run(bound[0], prepared.transaction)
        if isinstance(statement, statements.Question):
            questions = [each for each in bound if isinstance(each, statements.Question)]
            return self._one_after_another(questions) if questions else self.columns(prepared.text).empty_table()
        self.counted(bound, prepared.transaction)
        return _answered(None)

    def _one_after_another(self, questions: Sequence[statements.Question]) -> pa.Table:
        """Return the rows of several queries, as one result."""
        found: list[pa.Table] = []
        for question in questions:
            found.append(self.answer(question)[0])
            if sum(table.nbytes for table in found) > RESULT_BYTES_MAX:
                raise InvalidUsage(f"the results have more than {RESULT_BYTES_MAX} bytes: bind fewer rows at a time")
        names = found[0].column_names
        placed = [table.rename_columns([str(place) for place in range(len(names))]) for table in found]
        whole = pa.concat_tables(placed, promote_options="permissive").rename_columns(names)  # types may differ
        found.clear()  # what counted is the same bytes
        return self._held.hold(whole)

    def changed_prepared(self, handle: bytes) -> int:
        """As `counted`, of a prepared statement, with all rows of its parameters."""
        prepared = self._prepared.get(handle)
        count = self.counted(_bound(prepared, statements.parse(prepared.text)), prepared.transaction)
        self._prepared.change(handle, lambda before: replace(before, done=True))
        return count

    # ---- transactions ------------------------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """Begin a transaction; return its handle."""
        return self._transactions.put(self.env.begin())

    @one_statement(CHANGE)
    def commit(self, handle: bytes) -> int | None:
        """Commit a transaction; return its time (None: it changed nothing)."""
        time = self._committed(self._transactions.get(handle))
        self._transactions.drop(handle)
        return time

    def roll_back(self, handle: bytes) -> None:
        """Drop a transaction, with what it gathered."""
        self._transactions.take(handle)


def _bound(prepared: Prepared, statement: statements.Statement) -> list[statements.Statement]:
    """Return the statement as often as rows of parameters were sent; once, if none were."""
    wanted = parameters.count(prepared.text)
    rows = [()] if prepared.rows is None or not wanted else parameters.rows(prepared.rows)
    return [parameters.bound(statement, wanted, row) for row in rows]


def _inserts(statement: statements.Statement) -> int | None:
    """Return how many rows an INSERT of VALUES inserts; None: it is another statement."""
    if not isinstance(statement, statements.Insert):
        return None
    values = parse(statement.query.text)
    return len(values.expressions) if type(values) is exp.Values else None


def _answered(time: int | None) -> pa.Table:
    return pa.table([[time]], schema=ANSWERED)


def _bounded(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return all rows as one table."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > ROWS_BYTES_MAX:
            raise InvalidUsage(
                f"one call may bring {ROWS_BYTES_MAX} bytes of rows, and this one brings more: use several"
            )
        kept.append(batch)
    return _aligned(pa.Table.from_batches(kept)) if kept else pa.table({})


def _aligned(table: pa.Table) -> pa.Table:
    """Return a table whose buffers begin where Arrow's own do: those of a message begin anywhere."""
    return pa.ipc.open_stream(packed(table)).read_all()
