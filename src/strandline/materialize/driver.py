"""Driver: the endpoint's side of the protocol, as the runtime calls it.

A driver has five calls.  `Driver.spec` returns which configuration it takes.  `Driver.validate` returns, for every
column of every binding, whether the endpoint can, may, or must store it, and why.  `Driver.apply` makes the endpoint's
resources fit the bindings; `Driver.preview` returns what that would do.  `Driver.open` starts a session, a stream of
messages in the grammar of `messages` (checked by `grammar.Conversation` on either side).  A wire protocol has the same
shape: unary calls, then one session.

Source: design page "materialize" (drivers are products; the wire).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Any, Protocol

import pyarrow as pa

from strandline.errors import ConfigError, DefinitionError
from strandline.materialize.protocol.messages import Request, Response
from strandline.materialize.protocol.state import StateUpdate
from strandline.materialize.protocol.task import Binding, MaterializationSpec


@dataclass(frozen=True, slots=True)
class DriverSpec:
    """What a driver takes: JSON Schemas of the endpoint's and of a resource's configuration.

    `options_of` checks the options of a CREATE MATERIALIZATION by ``config_schema``, and ``strandline driver spec``
    prints both: there is no other list of options.
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
    """The verdicts on one binding: a constraint for each column of its schema."""

    constraints: Mapping[str, Constraint]


@dataclass(frozen=True, slots=True)
class Applied:
    """What `Driver.apply` did, in sentences (empty: nothing).

    A ``state`` means that it is not finished: keep the state, and apply again.
    """

    action: str = ""
    state: StateUpdate | None = None


class Session(Protocol):
    """One conversation with the endpoint.

    The first message is `Open`; messages are sent and received one at a time.
    """

    async def send(self, message: Request) -> None:
        """Send the driver a message.

        Raises:
            ProtocolViolation: the grammar does not allow it here.
            FencedError: a newer session has taken over; this session can no longer commit anything.
            Unavailable: the endpoint does not answer; open a new session later.
        """
        ...

    async def receive(self) -> Response:
        """Return the driver's next message, waiting for it.  Raises as `send` does."""
        ...

    async def close(self) -> None:
        """End the conversation; uncommitted rows are dropped.  May be called at any moment, and twice."""
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

    async def contents(self, binding: Binding, take: Callable[[pa.Table], None]) -> None:
        """Hand all rows that the binding's resource holds now to ``take``, for verification; at one moment.

        It is called with a bounded table at a time, the columns in the order of the schema, perhaps in a worker thread.
        Raises `InvalidUsage` if this endpoint cannot be read back, and what ``take`` raises.
        """
        ...


def options_of(endpoint: str, spec: DriverSpec, options: Mapping[str, str]) -> None:
    """Check the options of an endpoint against its driver's own schema.

    Options are texts, so this reads from the schema only which options exist, which are required, and which may be
    empty.

    >>> spec = DriverSpec({"properties": {"path": {"minLength": 1}}, "required": ["path"]}, {}, "")
    >>> options_of("duckdb", spec, {"path": "/a", "pth": "/b"})
    Traceback (most recent call last):
        ...
    strandline.errors.ConfigError: endpoint duckdb: option 'pth' is not known; it takes path (required)

    Raises:
        ConfigError: an option is unknown, missing or empty; the message names it and the driver's options.
    """
    known = spec.config_schema.get("properties", {})
    required = spec.config_schema.get("required", ())
    wrong = [f"option {name!r} is not known" for name in sorted(set(options) - set(known))]
    wrong += [f"option {name!r} is missing" for name in required if name not in options]
    wrong += [
        f"option {name!r} is empty"
        for name, value in options.items()
        if not value and known.get(name, {}).get("minLength", 0)
    ]
    if wrong:
        takes = ", ".join(f"{name} (required)" if name in required else name for name in known) or "no options"
        raise ConfigError(f"endpoint {endpoint}: {wrong[0]}; it takes {takes}")


REFUSALS = (ConstraintKind.FIELD_FORBIDDEN, ConstraintKind.INCOMPATIBLE)


def require_all(spec: MaterializationSpec, verdicts: tuple[Validated, ...]) -> None:
    """Check that every column of every binding may be stored: collections are materialized whole.

    Raises:
        DefinitionError: a column may not be stored; the message names binding, column and the driver's reason.
    """
    for binding, verdict in zip(spec.bindings, verdicts, strict=True):
        for column in binding.schema:
            constraint = verdict.constraints[column.name]
            if constraint.kind in REFUSALS:
                raise DefinitionError(
                    f"{binding.collection!r} cannot be materialized into {binding.resource!r}: "
                    f"column {column.name!r}: {constraint.reason}"
                )
