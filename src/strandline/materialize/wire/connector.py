"""The driver of any endpoint for which there is a Flow connector: a program that is run as a child process.

A process answers unary calls (Spec, Validate, Apply) and then has one session.  A process that has answered unary calls
is kept for a moment, so that validating, applying and opening a task takes one process.  After any failure the process
is gone, and the next call starts another one.

A connector's Apply cannot be asked what it would do, and its resource cannot be read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from strandline.errors import DefinitionError, InvalidUsage, ProtocolViolation, Unavailable
from strandline.materialize.driver import Applied, Contents, DriverSpec, Session, Validated
from strandline.materialize.protocol.task import Binding, MaterializationSpec, StateUpdate
from strandline.materialize.wire.codec import LOCAL, PROTOCOL, Message, Request, said
from strandline.materialize.wire.options import ConnectorOptions, codec
from strandline.materialize.wire.process.child import Child, Tail
from strandline.materialize.wire.session import ConnectorSession, Prepared, decoded
from strandline.materialize.wire.specs import (
    Selection,
    endpoint_config,
    proposed,
    resource_config,
    select,
    task_spec,
    token,
    version,
)
from strandline.materialize.wire.state import Kept, update_of
from strandline.materialize.wire.values import compact

IDLE_S: Final = 10.0
"""How long a process that has answered unary calls is kept for the next one."""


class ConnectorDriver:
    """See `driver.Driver`."""

    def __init__(self, options: ConnectorOptions) -> None:
        self._options = options
        self._config = options.understood_config()
        self._idle: Child | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._spec: Message | None = None
        self._applied: tuple[MaterializationSpec, Prepared] | None = None

    def __repr__(self) -> str:
        return f"ConnectorDriver({self._options.words[0]!r})"

    async def spec(self) -> DriverSpec:
        """Return which configuration the connector takes."""
        async with self._process() as child:
            found = await self._described(child)
        return DriverSpec(
            decoded(found.config_schema_json, "the configuration's schema"),
            decoded(found.resource_config_schema_json, "the resource's schema"),
            found.documentation_url,
        )

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Return the connector's verdict on each binding."""
        if spec.splits > 1:
            raise DefinitionError(
                f"materialization {spec.name!r}: a connector has one split, because no one knows how the states of "
                "several of its sessions become one: leave out the option splits"
            )
        async with self._process() as child:
            return tuple(each.validated for each in await self._validated(child, spec, Kept()))

    async def explain(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return, for each field of each binding, whether it is stored and why."""
        async with self._process() as child:
            chosen = await self._validated(child, spec, Kept())
        return tuple(
            f"{binding.resource!r}: {reason}"
            for binding, each in zip(spec.bindings, chosen, strict=True)
            for reason in each.reasons
        )

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Have the connector make its resources fit; keep what was applied, so that it sees what changes next."""
        kept = Kept.of(state)
        async with self._process() as child:
            prepared = await self._prepared(child, spec, kept)
            self._applied = (spec, prepared)
            request = {
                "materialization": prepared.spec,
                "version": prepared.version,
                "last_materialization": kept.last(prepared.spec.config_json),
                "last_version": kept.version,
                "state_json": compact(kept.connector),
            }
            answer = (await self._asked(child, Request(apply=request), "applied", limited=False)).applied
        update = update_of(answer.state) if answer.HasField("state") else None
        if update is None and kept.version == prepared.version:
            return Applied(answer.action_description)
        after = Kept(kept.connector if update is None else update.apply(kept.connector), kept.applied)
        return Applied(
            answer.action_description,
            StateUpdate((after if update is not None else after.with_applied(prepared.spec, prepared.version)).whole),
        )

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Raise `InvalidUsage`: a connector only says what it has done."""
        raise InvalidUsage(
            f"connector {self._name} cannot say what Apply would do to the resources of {spec.name!r} before it does it"
        )

    async def open(self) -> Session:
        """Start a conversation, with the process that answered the last unary call if it is still there."""
        child = await self._taken()
        return ConnectorSession(child, self._prepare_session, self._options.silence / 1_000)

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Raise `InvalidUsage`: the protocol has no message to read a resource."""
        raise InvalidUsage(f"connector {self._name} cannot read {binding.resource!r} back: look at the endpoint itself")

    # --- processes ----------------------------------------------------------------------------------------------------
    @property
    def _name(self) -> str:
        return repr(self._options.words[0])

    async def _taken(self) -> Child:
        """Return the process that is idle, or another one."""
        child, self._idle = self._idle, None
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if child is not None and child.here:
            return child
        if child is not None:
            child.abandon()
        return await Child.start(
            self._name,
            codec(self._options.codec.value),
            Tail(self._config.secrets),
            self._options.words,
            self._options.variables(),
        )

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[Child]:
        """Give a process for unary calls: it is kept if they succeed, and ended if one fails in any way."""
        child = await self._taken()
        try:
            yield child
        except BaseException:
            child.abandon()
            raise
        if self._idle is not None:
            child.abandon()
            return
        self._idle = child
        self._ending = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        if self._idle is not None:
            self._idle.abandon()
            self._idle = None

    # --- unary calls --------------------------------------------------------------------------------------------------
    async def _asked(self, child: Child, request: Message, answer: str, *, limited: bool = True) -> Message:
        """Send a unary request, and return its answer."""
        child.while_ = f"{said(request).capitalize()} was sent"
        try:
            async with asyncio.timeout(self._options.silence / 1_000 if limited else None):
                await child.send([request])
                found = await child.receive()
        except TimeoutError:
            raise Unavailable(
                f"connector {self._name} was silent for {self._options.silence / 1_000:g} s when {child.while_}; "
                "it was stopped (option silence)"
            ) from None
        if said(found) != answer:
            raise ProtocolViolation(f"connector {self._name}: {said(found)} came when {child.while_}")
        return found

    async def _described(self, child: Child) -> Message:
        if self._spec is None:
            request = Request(spec={"connector_type": LOCAL, "config_json": compact(self._config.fields)})
            found = (await self._asked(child, request, "spec")).spec
            if found.protocol != PROTOCOL:
                raise ProtocolViolation(
                    f"connector {self._name} speaks version {found.protocol} of the protocol; {PROTOCOL} is needed"
                )
            self._spec = found
        return self._spec

    async def _configured(self, child: Child, spec: MaterializationSpec) -> tuple[bytes, list[dict[str, Any]]]:
        """Return the configuration of the endpoint, and of each binding's resource."""
        described = await self._described(child)
        config = endpoint_config(
            decoded(described.config_schema_json, "the configuration's schema"), self._config.fields
        )
        schema = decoded(described.resource_config_schema_json, "the resource's schema")
        given: Mapping[str, Any] = self._options.resource_fields
        return compact(config), [resource_config(schema, given, binding) for binding in spec.bindings]

    async def _validated(self, child: Child, spec: MaterializationSpec, kept: Kept) -> tuple[Selection, ...]:
        config, resources = await self._configured(child, spec)
        request = {
            "name": token(spec.name),
            "connector_type": LOCAL,
            "config_json": config,
            "bindings": [proposed(binding, each) for binding, each in zip(spec.bindings, resources, strict=True)],
            "last_materialization": kept.last(config),
            "last_version": kept.version,
        }
        found = (await self._asked(child, Request(validate=request), "validated")).validated.bindings
        if len(found) != len(spec.bindings):
            raise ProtocolViolation(
                f"connector {self._name} validated {len(found)} bindings and was asked for {len(spec.bindings)}"
            )
        return tuple(select(binding, each) for binding, each in zip(spec.bindings, found, strict=True))

    async def _prepared(self, child: Child, spec: MaterializationSpec, kept: Kept) -> Prepared:
        chosen = await self._validated(child, spec, kept)
        config, resources = await self._configured(child, spec)
        made = task_spec(spec, config, resources, chosen)
        return Prepared(made, version(made), chosen)

    async def _prepare_session(self, child: Child, spec: MaterializationSpec, kept: Kept) -> Prepared:
        if self._applied is not None and self._applied[0] == spec:
            return self._applied[1]
        return await self._prepared(child, spec, kept)
