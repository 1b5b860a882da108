"""Drivers: the endpoint's side of the materialization protocol, as the runtime calls it.

A driver has five calls.  `Driver.spec` returns which configuration it takes.  `Driver.validate` returns, for every
column of every binding, whether the endpoint can, may, or must store it, and why.  `Driver.apply` makes the endpoint's
resources fit the bindings; `Driver.preview` returns what that would do.  `Driver.open` starts a session: a stream of
messages in the grammar of `messages`, which `messages.Conversation` checks on either side.  A wire protocol has the
same shape: unary calls, then one session.

Drivers that live in an event loop queue here what a session has answered and its runtime has not received yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from strandline.algebra.schema import shown
from strandline.errors import DefinitionError
from strandline.extras import FLOW, no_extras, require
from strandline.materialize.protocol.holds import EVERYTHING, Holds
from strandline.materialize.protocol.messages import Request, Response
from strandline.materialize.protocol.refusals import REFILL
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec, StateUpdate
from strandline.options import schema
from strandline.problem import Problem, Stopped, Way
from strandline.store.clock import Clock

O = TypeVar("O")  # noqa: E741 - a dataclass of options


FOREIGN_ROWS: Final = Problem(
    "table-of-another-program",
    "{table} holds rows that this materialization did not write",
    Stopped.ENDPOINT,
    (Way("drop the materialization, and create it with another name for the table"), Way("drop the table there")),
)
FILLED_BY: Final = Problem(
    "table-of-another-task",
    "{table} is filled by materialization {by!r}{where}",
    Stopped.ENDPOINT,
    (
        Way("drop the materialization, and create one of another name with another name for the table"),
        Way("drop the table there"),
    ),
)
NO_TABLE: Final = Problem(
    "no-table",
    "{table!r} cannot be filled, for it is {what}",
    Stopped.ENDPOINT,
    (
        Way("drop the materialization, and create it with another name for the table"),
        Way("drop what has that name there"),
    ),
)
TABLE_GONE: Final = Problem(
    "table-gone", "{table} is gone, though it was filled from {collection!r}", Stopped.ENDPOINT, (REFILL,)
)
UNFIT: Final = Problem(
    "table-altered",
    "{table} has the columns ({there}), but {collection!r} needs ({wanted})",
    Stopped.ENDPOINT,
    (REFILL,),
)
UNFIT_FOREIGN: Final = Problem(
    "table-unlike",
    "{table} has the columns ({there}), but {collection!r} needs ({wanted}), and this materialization does not own it",
    Stopped.ENDPOINT,
    (Way("drop the materialization, and create it with another name for the table"), Way("drop the table there")),
)
ROWS_MISSING: Final = Problem(
    "table-rows-missing",
    "{table}: of {wanted} rows to replace or delete {found} were there: another program changed the table",
    Stopped.ENDPOINT,
    (REFILL,),
)
SWALLOWED: Final = Problem(
    "table-rows-swallowed",
    "table {table!r}: of {rows} rows to insert {taken} were stored: another program's trigger keeps the others out",
    Stopped.ENDPOINT,
    (Way("drop that trigger there"),),
)


@dataclass(frozen=True, slots=True)
class DriverSpec:
    """What a driver takes: JSON Schemas of the endpoint's and of a resource's configuration.

    Both are made from the options that the driver's entry declares (`DriverKind`).
    """

    config_schema: Mapping[str, Any]
    resource_schema: Mapping[str, Any]
    documentation_url: str


@unique
class ConstraintKind(IntEnum):
    """The endpoint's verdict on one column.  The numbers are those of the wire protocol."""

    FIELD_REQUIRED = 1
    LOCATION_REQUIRED = 2
    LOCATION_RECOMMENDED = 3
    FIELD_OPTIONAL = 4
    FIELD_FORBIDDEN = 5
    INCOMPATIBLE = 6


@dataclass(frozen=True, slots=True)
class Constraint:
    """A verdict on one column, with the reason for messages."""

    kind: ConstraintKind
    reason: str


@dataclass(frozen=True, slots=True)
class Validated:
    """The verdicts on one binding: a constraint for each column of its schema, and which values can be stored.

    ``empties``: what an earlier binding of the task has left in the resource goes when this one begins, also if there
    was a time in which none was bound to it.
    """

    constraints: Mapping[str, Constraint]
    holds: Holds = EVERYTHING
    empties: bool = True


@dataclass(frozen=True, slots=True)
class Applied:
    """What `Driver.apply` did, in sentences (empty: nothing).

    A ``state`` means that it is not finished: keep the state, and apply again.
    """

    action: str = ""
    state: StateUpdate | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What a resource holds at one moment, which can be read once.

    ``checkpoint``: what the endpoint holds for the task at that moment; None if it keeps none.  It may be beyond that
    of the recovery log, and, while a transaction is being committed, behind it.  ``tables``: bounded tables of the
    binding's columns, in their order.  A reader that stops early must close them (`aclosing`).
    """

    checkpoint: Checkpoint | None
    tables: AsyncGenerator[pa.Table, None]


class Session(Protocol):
    """One conversation with the endpoint.

    The first message is `Open`.  One message at a time is sent, and one at a time received, but both at once: while
    `send` waits, `receive` may be waiting, too.
    """

    async def send(self, message: Request) -> None:
        """Send the driver a message.

        It may take as long as the driver works on it: a driver that commits in here answers `StartedCommit` first, so
        that the runtime reads the next transaction meanwhile.

        Raises:
            ProtocolViolation: the grammar does not allow it here.
            FencedError: a newer session has taken over; this session can no longer commit anything.
            Unavailable: the endpoint does not answer; open a new session later.
        """
        ...

    async def receive(self) -> Response:
        """Return the driver's next message, waiting for it.  Raises as `send` does.

        It may be cancelled; a message that was not returned is returned by the next call.
        """
        ...

    async def close(self) -> None:
        """End the conversation; uncommitted rows are dropped.  May be called at any moment, and twice.

        No `send` or `receive` is waiting then.
        """
        ...


@runtime_checkable
class JoinsStates(Protocol):
    """A driver whose sessions for several key ranges have states of which each one alone is not enough for all."""

    def joined(self, states: Sequence[Any]) -> Any:
        """Return the state of a session for all of these ranges, given that nothing is under way in any of them."""
        ...


class Driver(Protocol):
    """An endpoint.

    Every call may raise `ConfigError` (the configuration is wrong) or `Unavailable` (try again later).
    """

    async def spec(self) -> DriverSpec:
        """Return which configuration this driver takes."""
        ...

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Return the endpoint's verdict on each binding; changes nothing."""
        ...

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Make the endpoint's resources fit ``spec``.  Idempotent; repeated until it returns no state.

        Raises:
            DefinitionError: a resource exists and does not fit.
        """
        ...

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return what `apply` and the first transaction after it would do to the resources; change nothing.

        Empty: nothing.  Raises as `apply`.
        """
        ...

    async def open(self) -> Session:
        """Start a conversation."""
        ...

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Return all rows that the binding's resource holds now, for verification.

        Raises `InvalidUsage` if this endpoint cannot be read back.
        """
        ...


@dataclass(frozen=True, slots=True)
class DriverKind(Generic[O]):
    """A driver that CREATE MATERIALIZATION can name: its endpoint's name, its options, and how it is opened.

    ``options`` and ``resource`` (of one table, topic, …) are dataclasses of `strandline.options`.  ``open`` touches no
    endpoint; it may raise `ConfigError`.  ``needs``: the extras whose libraries an endpoint with these options needs;
    the caller of ``open`` requires them first.
    """

    name: str
    options: type[O]
    resource: type[Any]
    documentation_url: str
    open: Callable[[O, Clock], Driver]
    needs: Callable[[O], Sequence[str]] = no_extras

    @property
    def spec(self) -> DriverSpec:
        """What the driver takes, as programs read it."""
        return DriverSpec(schema(self.options), schema(self.resource), self.documentation_url)


REFUSALS = (ConstraintKind.FIELD_FORBIDDEN, ConstraintKind.INCOMPATIBLE)


def no_name(why: str) -> Constraint:
    """Return the verdict on a column whose name an endpoint cannot have."""
    return Constraint(
        ConstraintKind.INCOMPATIBLE, f"{why}; give it another name in a view (`… AS name`), and materialize that"
    )


def require_all(spec: MaterializationSpec, verdicts: tuple[Validated, ...]) -> None:
    """Check that every column of every binding may be stored: collections are materialized whole.

    Raises:
        DefinitionError: a column may not be stored; the message names binding, column and the driver's reason.
        ConfigError: the library that divides keys among splits is not installed.
    """
    if spec.splits > 1:
        require(f"materialization {spec.name!r} has {spec.splits} splits, and", (FLOW,))
    for binding, verdict in zip(spec.bindings, verdicts, strict=True):
        for column in binding.schema:
            constraint = verdict.constraints[column.name]
            if constraint.kind in REFUSALS:
                raise DefinitionError(
                    f"{binding.collection!r} cannot be materialized into {binding.resource!r}: "
                    f"column {shown(column.name)}: {constraint.reason}"
                )


class Answers:
    """A queue of one sender and one receiver, in one event loop.

    It has no bound: a session answers at most what it was asked for.
    """

    def __init__(self) -> None:
        self._said: deque[Response] = deque()
        self._came = asyncio.Event()
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._said)

    def put(self, message: Response) -> None:
        """Add an answer."""
        self._said.append(message)
        self._came.set()

    def fail(self, error: Exception) -> None:
        """Have `take` raise ``error`` once all answers are taken: no more will come."""
        self._error = error
        self._came.set()

    async def take(self) -> Response:
        """Return the oldest answer, as soon as there is one.  Raises what `fail` was given."""
        while not self._said:
            if self._error is not None:
                raise self._error
            self._came.clear()
            await self._came.wait()
        return self._said.popleft()
