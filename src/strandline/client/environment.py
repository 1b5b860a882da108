"""The open environment: definitions, writes, ticks, reads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.client.access import Access
from strandline.client.cancelling import Cancel
from strandline.client.reading import Asking, Bounds, Collection, shown_rows
from strandline.client.subscribing import Events, Subscription
from strandline.client.writing import Data, Prepared, Transaction, change, committed, prepared
from strandline.compute.rules.explanation import Explanation
from strandline.controller.asking import housekeeping, reads, status, verification
from strandline.controller.asking.peeking import peek
from strandline.controller.asking.selfcheck import SelfCheck
from strandline.controller.asking.skip import go_on_without, skip
from strandline.controller.asking.status import progress
from strandline.controller.asking.verification import Verification
from strandline.controller.asking.wrong_replicas import WrongReplicas
from strandline.controller.defining import altering, sources
from strandline.controller.defining.apply import Applied, apply
from strandline.controller.defining.changing import replacing, tables
from strandline.controller.defining.creating import create, foreseen_statement
from strandline.controller.defining.explaining import explain_view
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import Project
from strandline.controller.defining.trying.anew import anew
from strandline.controller.holding import Hold
from strandline.controller.language import arguments, statements
from strandline.controller.language.altering import Alter
from strandline.controller.language.showing import Show, Subscribe
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config
from strandline.controller.location.items import Collected, Item, Materialization, View, kind_of
from strandline.controller.observing import figures
from strandline.controller.observing.figures import acknowledge
from strandline.controller.preparing.planned import deploy, deployment, foreseen, foreseen_project
from strandline.controller.preparing.preparation import promotion
from strandline.errors import AsOfError, InvalidUsage, Unavailable
from strandline.frontier import MINIMUM, Frontier
from strandline.instance.beginnings import Beginning
from strandline.instance.loop import Loop
from strandline.materialize.status import Status
from strandline.persist.shard.patience import Deadline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
RETRY_S: Final = 10.0
"""How long a source that is tried again may take until it is said how it stands."""
SYNC_POLL_S: Final = 0.1
"""How often is looked whether an endpoint is where it is to come to."""


class Environment:
    """Definitions, writes, ticks, reads.  Opened by `strandline.open`; close it, or use it as a context."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._core = access.core
        self._run = access.run
        self._selfcheck = SelfCheck(access.core)
        self._wrong_replicas = WrongReplicas(access.core)
        self._checks = Loop(access.assembly.beside, self._check)
        self._asking = Asking(access)

    def __repr__(self) -> str:
        return f"<Environment: {self._access.described()}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> Config:
        """How it runs."""
        return self._core.config

    @property
    def catalog(self) -> Catalog:
        """What is defined at its location, as this process knows it."""
        return self._core.catalog

    @property
    def directory(self) -> Path | None:
        """The directory of its location; None: it is not in files."""
        address = self._access.assembly.address
        return None if address is None else address.parent

    @property
    def writes(self) -> bool:
        """Whether it may change anything, and ticks."""
        return self._core.writing is not None

    def close(self) -> None:
        """Close the location and release it.  Everything that was acknowledged is durable already.

        Raises what an endpoint or a store raises; it is closed all the same.
        """
        self._access.close()

    # ---- definitions and writes --------------------------------------------------------------------------------------

    def apply(self, project: Project, *, whole: bool = True) -> Applied:
        """Create what ``project`` defines and is missing here; see `strandline.controller.defining.apply`.

        ``whole``: refuse all of it if a definition differs from what is here; else apply the others.
        """
        arguments.instance(project, Project, "project", "a Project (strandline.controller.defining.project.files.load)")
        self._run(self._core.settle())
        self._asking.planned(project, foreseen_project(self._core, project), apply=True)
        return self._run(apply(self._core, project, whole=whole))

    def deploy(self, directory: str | Path, *, apply: bool = False, drop: Sequence[str] = ()) -> dict[str, Any]:
        """Return what the project in ``directory`` says otherwise than there is here, and what it costs to change that.

        ``apply``: change it, in whole or not at all.  ``drop``: the names of what may be dropped for it; ``["all"]``:
        whatever the project defines otherwise, or no longer.  The answer is plain data: see `strandline plan --json`;
        ``refused`` says what is wrong, and then nothing was changed.

        Raises `ConfigError` if there is no project, its settings are wrong, or another one has this location;
        `InvalidUsage` if a name of ``drop`` is none of an item, or one of an item that needs no drop.
        """
        project, names = load(Path(directory), whole=False), arguments.names(drop, "drop")

        async def deployed(call: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
            return await call(self._core, project, await status.live_counters(self._core), drop=names)

        plan: dict[str, Any] = self._asking.planned(project, deployed(foreseen if apply else deployment), apply=apply)
        return dict(self._run(deployed(deploy))) if apply else plan

    def execute(self, sql: str | statements.Statement) -> int | None:
        """Run one statement; INSERT, UPDATE and DELETE return their commit timestamp.

        Raises `DefinitionError` with a position where the text is wrong.  Queries are asked with `query`.
        """
        statement = arguments.statement(sql)
        if isinstance(statement, statements.Create | Alter | statements.Drop):
            self._run(self._core.settle())
        match statement:
            case statement if isinstance(statement, statements.Create):
                self._access.wait(foreseen_statement(self._core, statement))
                self._run(create(self._core, statement))
            case statement if isinstance(statement, Alter):
                self._run(altering.alter(self._core, statement))
            case statements.Drop() as s:
                self._run(replacing.drop(self._core, s))
            case statements.Insert() | statements.Delete() | statements.Update() as s:
                transaction = self.begin()
                transaction.execute(s)
                return transaction.commit()
            case statements.Bracket(word):
                raise InvalidUsage(f"{word} works in a script only; a program writes: with env.transaction() as txn")
            case statements.Query() | Show():
                raise InvalidUsage("a query returns rows: call env.query(…)")
            case Subscribe():
                raise InvalidUsage(
                    "SUBSCRIBE works in the shell; a program iterates over env.subscribe(…), and "
                    "`strandline subscribe` prints what comes"
                )
        return None

    def insert(self, table: str, rows: Data, token: str | None = None) -> int:
        """Insert ``rows`` and return the commit timestamp; durable when it returns.

        The same ``token`` twice is one commit; one that ends in ``@`` and milliseconds expires (docs/streams.md).
        """
        wanted = change(self._access, table, rows, deletes=False)
        return committed(self._access, [wanted], arguments.token(token))

    def delete(self, table: str, rows: Data, token: str | None = None) -> int:
        """Delete ``rows`` and return the commit timestamp.

        A row that is not there fails the whole call (`InvalidUsage`).
        """
        wanted = change(self._access, table, rows, deletes=True)
        return committed(self._access, [wanted], arguments.token(token))

    @contextmanager
    def transaction(self, token: str | None = None) -> Iterator[Transaction]:
        """Gather inserts and deletes, and commit them at one time when the block ends without an error."""
        transaction = self.begin(token)
        yield transaction
        transaction.commit()

    def begin(self, token: str | None = None) -> Transaction:
        """Return a transaction for a caller that cannot use `transaction`; nothing happens before its `commit`."""
        return Transaction(self._access, token)

    # ---- going on ----------------------------------------------------------------------------------------------------

    def tick(self, ts: int | None = None, *, wait: bool = False, timeout: float | None = None) -> int:
        """Ingest sources, advance every view and endpoint to one new time, and return it.

        An upstream that does not answer within ``tick_ms`` stalls its source until it does; ``wait`` waits for its
        answer.  Between ticks views are checked within a small budget (`controller/asking/selfcheck.py`).

        ``timeout``: return after so many seconds at the latest.  What is on its way then goes on beside whatever the
        caller does next, and later ticks with a timeout do not wait for it; `progress` names it (``late``).

        Raises `FencedError` if another environment has taken over, `ConfigError` if Spark has ended: then no tick of
        this environment brings anything on; or if Spark has had no executor for ``executors_end_s``, or the master of
        its cluster no longer knows this application, which no executor can come to then.
        """
        at = arguments.maybe_time(ts, "ts")
        if timeout is not None:
            arguments.seconds(timeout, "timeout")
        return self._run(self._ticked(at, wait=wait, timeout=timeout))

    async def _ticked(self, ts: int | None, *, wait: bool, timeout: float | None) -> int:
        deadline = None if timeout is None else Deadline(self._core.assembly.clock, timeout)
        await self._settle()
        time = await tables.tick(self._core, ts, wait=wait, deadline=deadline)
        self._checks.wake()
        if await self._checks.rest(deadline):
            await self._settle()
        return time

    async def _check(self) -> None:
        await self._wrong_replicas.turn()
        await self._selfcheck.turn()

    async def _settle(self) -> None:
        await self._wrong_replicas.settle()
        await self._selfcheck.settle()

    def idle(self) -> bool:
        """Return whether a tick would find nothing new: everything is complete, and upstreams have no more.

        It asks upstreams, and writes nothing.  Ticks may be left out then: no collection changes meanwhile.
        """
        return self._run(self._idle())

    async def _idle(self) -> bool:
        return await self._core.idle() and self._wrong_replicas.settled

    def promote(self, *, force: bool = False, timeout: float = 60.0) -> int:
        """Have the next version of this location promoted, by the process that prepares it; return its generation.

        ``force``: it may be behind.  ``timeout``: within how many seconds.

        Raises `InvalidUsage` if nothing is prepared or a view has not caught up; `Unavailable` if it was not promoted
        in time: then nothing changes.
        """
        arguments.seconds(timeout, "timeout")
        return self._access.wait(promotion(self._core, force=force, timeout_s=timeout))

    def sync(self, ts: int, timeout: float | None = None) -> None:
        """Tick until every view's upper is past ``ts``.

        Raises `AsOfError` naming a view that is not, at the end of the tick in which ``timeout`` seconds have passed
        (None: of the first one that moved none).
        """
        self._access.refuse_closed()
        arguments.time(ts, "ts")
        arguments.seconds(timeout, "timeout")
        pause_s, waited = self._core.config.tick_ms / 1000, 0.0
        while behind := self._behind(ts):
            before = self._uppers()
            waited += self._timed(partial(self.tick, wait=timeout is None))
            if not self._behind(ts):
                return
            if self._uppers() == before if timeout is None else waited >= timeout:
                problems = "; ".join(f"{n}: {p}" for n, p in sorted(self._core.health.problems().items()))
                raise AsOfError(f"view {behind[0]!r} is not past {ts} yet" + (f" ({problems})" if problems else ""))
            waited += self._timed(partial(self._pause, pause_s if timeout is None else min(pause_s, timeout - waited)))

    def sync_now(self, name: str, timeout: float = 60.0) -> int:
        """Bring a materialization's endpoint to where its collections are now, and return the time it has come to.

        Its schedule does not count until then.  If this environment writes, it ticks; else the one that writes has to.

        Raises `DefinitionError` if there is no such materialization, `Unavailable` if the endpoint is not there within
        ``timeout`` seconds: it comes there all the same, as soon as it can.
        """
        arguments.text(name, "the materialization's name")
        arguments.seconds(timeout, "timeout")
        core, clock = self._core, self._access.assembly.clock
        upto, begun = self._run(core.hurry(name)), clock.now_ms()
        while (position := self._run(core.arrived(name, upto))) is None:
            left = timeout - (clock.now_ms() - begun) / 1000
            if left <= 0:
                why = self.status()["problems"].get(name.lower(), "is `strandline run` running?")
                raise Unavailable(f"the endpoint of {name!r} has not come to {upto} within {timeout:g} s: {why}")
            if core.writing is not None:
                self.tick(timeout=left)
            self._pause(min(left, SYNC_POLL_S))
        return position

    # ---- reads -------------------------------------------------------------------------------------------------------

    def query(self, sql: str, as_of: int | None = None) -> DataFrame:
        """Return the answer to ``sql`` over collections at one time (default: the latest complete for all).

        Raises `DefinitionError` with a position where the text is wrong, `AsOfError` if the time cannot be read.
        """
        question, time, hold = arguments.question(sql), arguments.maybe_time(as_of, "as_of"), Hold()
        if isinstance(question, Show):
            return self._access.hand_out(self._run(shown_rows(self._core, question, time)), hold)
        found = self._run(reads.query(self._core, question.text, time, hold, question.given))
        return self._access.hand_out(found.rows, hold)

    def answer(
        self,
        sql: str | statements.Question,
        as_of: int | None = None,
        least: int = 0,
        *,
        cancel: Cancel | None = None,
        timeout: float | None = None,
        bytes_max: int = 0,
        rows_max: int = 0,
    ) -> tuple[pa.Table, int | None]:
        """Return the answer to ``sql``, whole, and the time at which it is true (None: it reads no collection).

        It waits for no tick that goes on.  ``least``: the time is this or a later one.  ``cancel``: called from another
        thread, it ends this call, and what Spark computes for it.  ``timeout``: it is cancelled after so many seconds,
        and after ``query_limit_s`` in any case.  ``bytes_max``, ``rows_max``: of the answer, or 0: of any size.

        Raises as `query`; `CollectionError` if an expression has no value for a row; `InvalidUsage` if it was cancelled
        or is too large; `reads.NotYetError`, an `AsOfError`, if not everything is complete at ``least`` yet.
        """
        question, time = arguments.question(sql), arguments.maybe_time(as_of, "as_of")
        bounds = Bounds(bytes_max, rows_max, arguments.seconds(timeout, "timeout"))
        return self._asking.answer(question, time, least, cancel, bounds)

    def listed(self, text: str, cancel: Cancel) -> AbstractContextManager[object]:
        """List a query in `queries` from now on, which is asked inside; ``cancel`` is what `cancel_query` calls."""
        return self._core.queries.asked(text, cancel)

    def queries(self) -> list[dict[str, Any]]:
        """Return the queries that are answered now: ``number``, ``who``, ``since`` and ``ms``, ``stage``, ``text``."""
        return self._core.queries.told()

    def cancel_query(self, number: int) -> bool:
        """Cancel a query, whose caller receives `InvalidUsage`; return whether there is one with this number."""
        return self._core.queries.cancel(arguments.count(number, "the query's number"))

    def prepared(self, sql: str | statements.Statement) -> Prepared:
        """Return what a statement is answered with, and its parameters' types; nothing is computed.

        Raises as `query` and `execute`.
        """
        return prepared(self._access, arguments.statement(sql), self._asking.held)

    def peek(
        self,
        name: str,
        key: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        as_of: int | None = None,
        limit: int | None = None,
        timeout: float | None = 10.0,
    ) -> pa.Table:
        """Return the rows of a collection that have a key: a value for each of some columns; or one of several keys.

        With an index on just these columns they come from memory, in no Spark job; without one the answer is the same,
        and slower.  It waits for no tick that goes on.  A row is there as often as the collection has it; None finds
        the rows with NULL.  ``as_of``: default, the latest complete time.  ``limit``: at most so many rows, any of
        them.  ``timeout``: for so many seconds it waits for a time that is to come.

        Raises `DefinitionError` if there is no such collection or column, `InvalidUsage` for a value that is none of
        its column's, `AsOfError` if the time cannot be read, `CollectionError` if the collection has errors then.
        """
        wanted = arguments.keys(key)
        call = peek(
            self._core,
            arguments.text(name, "the collection's name"),
            wanted,
            arguments.maybe_time(as_of, "as_of"),
            arguments.maybe_count(limit, "limit"),
            arguments.seconds(timeout, "timeout"),
        )
        return self._access.wait(call)

    def subscribe(self, name_or_sql: str, as_of: int | None = None, until: int | None = None) -> Events:
        """Yield a collection's contents at ``as_of``, then each change before ``until``, once, as it becomes complete.

        `Updates` hold Arrow batches with ``__time`` and ``__diff``; after ``Progress(upper)`` all updates before
        ``upper`` have come.  ``as_of``: default, the latest complete time.  ``until``: default, for ever.  Of a query,
        which only the environment that writes takes, a view is kept for as long as the iterator is.  The iterator waits
        for ticks, which another thread or process makes; close it (``contextlib.closing``) to end it.

        Raises as `Subscription.open` and `Subscription.next` (`client/subscribing.py`).
        """
        what = arguments.text(name_or_sql, "what to subscribe to")
        start, end = arguments.maybe_time(as_of, "as_of"), arguments.maybe_time(until, "until")
        return Events(self._access, self._run(Subscription.open(self._core, what, start, end)))

    def collections(self) -> dict[str, tuple[str, Schema]]:
        """Return what kind each collection is, and its schema, by its name as its author wrote it."""

        async def look() -> dict[str, tuple[str, Schema]]:
            await self._core.look()
            items = self._core.catalog.items.values()
            return {item.name: (kind_of(item), item.schema) for item in items if isinstance(item, Collected)}

        return self._access.wait(look())

    def collection(self, name: str) -> Collection:
        """Return the collection ``name`` as it is now.  Raises `DefinitionError` with candidates if there is none."""
        arguments.text(name, "the collection's name")

        async def look() -> Collection:
            reader = await self._core.readers.of(name)
            state = await reader.refresh()
            return Collection(reader.name, reader.schema, reader.since.at, state.upper.at, self._access)

        return self._run(look())

    def explain(self, name: str) -> Explanation:
        """Say how a view is maintained: rule, key, look-ups, last step of each stage; why anything is recomputed."""
        arguments.text(name, "the view's name")

        async def explain() -> Explanation:
            await self._core.look()
            await self._core.remember()
            given = (self._core, name, await status.live_counters(self._core))
            return await self._core.assembly.planning(lambda: explain_view(*given))

        return self._access.wait(explain())

    def verify(self, name: str, as_of: int | None = None, repair: bool = False) -> Verification:
        """Recompute a view by plain Spark at one time and compare, both ways; ``repair`` appends the difference.

        It also compares the view's internal state with the inputs of that state, and reports a difference as
        ``view/stage``.  A materialization is compared with its collections: ``tables`` has each of them.
        """
        arguments.text(name, "the view's name")
        arguments.maybe_time(as_of, "as_of")

        async def item() -> Item | None:
            return self._core.catalog.find(name)

        if isinstance(self._run(item()), Materialization):
            if as_of is not None or repair:
                raise InvalidUsage(
                    f"{name!r} is a materialization: it is compared at the time that its endpoint has reached, and "
                    "filled again by env.backfill or `strandline backfill`"
                )
            return self._asking.endpoint_verified(name)
        found = self._verified(name, as_of)
        if found.ok or not repair:
            return found
        self._run(altering.audit(self._core, name))
        self.tick()
        again = self._verified(name, None)
        return replace(again, repaired=again.ok)

    def status(self) -> dict[str, Any]:
        """Return what ``strandline status --json`` prints: collections, errors, problems, materializations."""
        return self._run(status.status(self._core))

    def progress(self) -> dict[str, Any]:
        """Return what this environment has done since it was opened (`controller.asking.status`)."""
        return self._run(self._now(progress))

    def figures(self) -> dict[str, Any]:
        """Return how each item is, in numbers, from memory alone (`controller/observing/figures.py`).

        It reads no store, starts no job and waits for no tick; only the environment that writes has them.
        """
        return self._access.wait(self._now(figures.figures))

    def errors(self, name: str) -> dict[str, Any]:
        """Return how many errors a collection has now, the first of them, and since when.  It waits for no tick."""
        return self._access.wait(figures.errors(self._core, arguments.text(name, "the collection's name")))

    def described(self, name: str) -> dict[str, Any] | None:
        """Return an item's definition, columns, plan and holders, from memory alone; None: there is no such item."""
        return self._access.wait(self._now(figures.described, arguments.text(name, "the item's name")))

    def beginnings(self) -> tuple[Beginning, ...]:
        """Return what is read or computed for the first time, also while a tick goes on; any thread may ask."""
        return self._core.beginnings()

    def watch(self, call: Callable[[Status], None]) -> None:
        """Have ``call`` made while a tick goes on, after every batch of rows that a materialization reads or sends.

        It is made on the environment's own thread: it must not block, raise, or call the environment.
        """
        self._core.require_writing().instance.watch = call

    def overdue(self, call: Callable[[Mapping[str, str]], None]) -> None:
        """Have ``call`` made, as by `watch`, while a tick runs long: every few seconds, with what items wait for."""
        self._core.health.overdue = call

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what the shard of a collection (or a shard by its id) is: state, batches, holders, bytes."""
        return self._run(housekeeping.inspect(self._core, arguments.text(name, "the collection's name")))

    def fsck(self, *, apply: bool = False) -> dict[str, Any]:
        """Read everything the location names and return what is wrong; ``apply``: remove what is leaked."""
        return self._run(housekeeping.check(self._core, apply=apply))

    def compact(self, name: str | None = None, *, apply: bool = False) -> list[dict[str, Any]]:
        """Return which shards a whole merge would change (``name``: only that one); ``apply``: merge them."""
        wanted = None if name is None else arguments.text(name, "the collection's name")
        return self._run(housekeeping.compact(self._core, wanted, apply=apply))

    def gc(self, *, apply: bool = False) -> list[dict[str, Any]]:
        """Return which shards have garbage, and how much; ``apply``: collect it."""
        return self._run(housekeeping.collect(self._core, apply=apply))

    def backfill(self, name: str, collection: str | None = None, *, apply: bool = False) -> dict[str, Any]:
        """Return what filling a materialization's tables again does; ``apply``: do it, and the next tick fills them.

        ``collection``: only the table that is bound to it.  See `strandline.controller.asking.verification`.
        """
        arguments.text(name, "the materialization's name")
        wanted = None if collection is None else arguments.text(collection, "the collection's name")
        return self._run(verification.backfill(self._core, name, wanted, apply=apply))

    def skip(
        self, source: str, as_of: int | None = None, *, file: str | Sequence[str] = (), apply: bool = False
    ) -> dict[str, Any]:
        """Return undecodable records at ``as_of`` (None: now), or harmed files; ``apply``: go on without them."""
        time, name = arguments.maybe_time(as_of, "as_of"), arguments.text(source, "the source's name")
        return self._run(skip(self._core, name, time, files=arguments.one_or_more(file, "file"), apply=apply))

    def withdraw(self, source: str, files: Sequence[str], *, apply: bool = False) -> dict[str, Any]:
        """Have a source go on without files, and withdraw their rows; without ``apply`` only say so."""
        name, named = arguments.text(source, "the source's name"), arguments.names(files, "files")
        return self._run(go_on_without(self._core, name, named, apply=apply, withdraws=True))

    def anew(self, name: str, *, apply: bool = False) -> dict[str, Any]:
        """Return the statements that define an item again, with all that reads it; ``apply``: do all in one write."""
        return self._run(anew(self._core, arguments.text(name, "the item's name"), apply=apply))

    def retry(self, source: str) -> dict[str, Any]:
        """Open a source anew, tick, and return its name and its ``problem`` after that; None: it goes on."""
        name = self._run(sources.retry(self._core, arguments.text(source, "the source's name")))
        self.tick(timeout=RETRY_S)
        return {"source": name, "problem": self._core.health.problems().get(name.lower())}

    def acknowledge(self, name: str | None = None) -> dict[str, Any]:
        """Acknowledge the notices of an item (None: of all): `status` leaves them out; return those it had, by item.

        Raises `DefinitionError` if there is no such item, `InvalidUsage` if it only has a problem, or only waits.
        """
        wanted = None if name is None else arguments.text(name, "the item's name")
        return self._access.wait(acknowledge(self._core, wanted))

    def release(self) -> str | None:
        """Release a location whose holder died; return it, None if there is none.  Raises `ConfigError` if it lives."""
        return self._run(housekeeping.release(self._core))

    def written_by(self) -> str | None:
        """Return the holder that writes the location, unless it is known to be dead.  It waits for no other call."""
        return self._access.wait(housekeeping.written_by(self._core))

    # ---- inside ------------------------------------------------------------------------------------------------------

    async def _now(self, call: Callable[..., T], *given: object) -> T:
        return call(self._core, *given)

    def _verified(self, name: str, as_of: int | None) -> Verification:
        """Return how a view differs from its query; if it does not, how its state does."""
        found = self._asking.verified(name, partial(verification.verify, self._core, name, as_of))
        # State has no history: it is compared at the time that it is complete at.
        state: Sequence[Verification] = ()
        if found.ok and as_of is None:
            state = self._asking.verified(name, partial(verification.verify_state, self._core, name))
        return next((stage for stage in state if not stage.ok), found)

    def _pause(self, seconds: float) -> None:
        self._run(self._access.assembly.clock.sleep(seconds))

    def _timed(self, call: Callable[[], object]) -> float:
        """Make a call and return how many seconds it took; none where the clock was set back meanwhile."""
        begun = self._access.assembly.clock.now_ms()
        call()
        return max(0, self._access.assembly.clock.now_ms() - begun) / 1000

    def _uppers(self) -> dict[str, Frontier]:
        """Return how far each view has come; one that could not be opened has not begun, as far as is known here."""
        self._core.require_writing()
        views = {name: item for name, item in self._core.catalog.items.items() if isinstance(item, View)}
        states = {name: self._core.client.known(view.shard) for name, view in views.items()}
        return {name: MINIMUM if state is None else state.upper for name, state in states.items()}

    def _behind(self, ts: int) -> list[str]:
        return sorted(name for name, upper in self._uppers().items() if upper <= Frontier(ts))
