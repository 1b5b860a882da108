"""The driver state of a task whose endpoint is a connector: the connector's own, and what was applied last.

    {"connector": ..., "applied": {"version": "...", "spec": "..."}}

A connector sees from the specification that was applied last which bindings are to be filled anew, so it is kept, with
the endpoint's configuration left out (it may hold secrets).  A connector's update is put in its place: a merge patch
stays one, a replacement leaves what was applied.

An earlier checkpoint that the connector's state names (`log.RESTART`) is named by the whole state too.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from strandline.errors import CorruptionError, ProtocolViolation
from strandline.materialize.log import RESTART
from strandline.materialize.protocol.refusals import DAMAGED
from strandline.materialize.protocol.task import StateUpdate
from strandline.materialize.wire.codec import MaterializationSpec, Message

_CONNECTOR: Final = "connector"
_APPLIED: Final = "applied"


@dataclass(frozen=True, slots=True)
class Kept:
    """The state of a task; ``applied`` is None before the first Apply."""

    connector: Any = field(default_factory=dict)
    applied: Mapping[str, str] | None = None

    @staticmethod
    def of(state: Any) -> Kept:
        """Return what a task's state says.

        >>> Kept.of({}).connector, Kept.of({"connector": {"a": 1}}).connector
        ({}, {'a': 1})
        """
        found = state if isinstance(state, Mapping) else {}
        connector = found.get(_CONNECTOR)
        return Kept({} if connector is None else connector, found.get(_APPLIED))

    @property
    def whole(self) -> dict[str, Any]:
        """The state as the recovery log keeps it."""
        restart = self.connector.get(RESTART) if isinstance(self.connector, Mapping) else None
        return {
            _CONNECTOR: self.connector,
            **({} if self.applied is None else {_APPLIED: self.applied}),
            **({} if restart is None else {RESTART: restart}),
        }

    def updated(self, update: StateUpdate) -> tuple[Kept, StateUpdate]:
        """Return the state after a connector's update, and the update of the whole state that leads there.

        >>> kept, update = Kept({"a": 1}, {"version": "v"}).updated(StateUpdate({"b": 2}, merge_patch=True))
        >>> kept.connector, update.updated
        ({'a': 1, 'b': 2}, {'connector': {'b': 2}})
        """
        after = Kept(update.apply(self.connector), self.applied)
        if not update.merge_patch or not isinstance(update.updated, Mapping):
            return after, StateUpdate(after.whole)
        named = {RESTART: update.updated[RESTART]} if RESTART in update.updated else {}
        return after, StateUpdate({_CONNECTOR: update.updated, **named}, merge_patch=True)

    @property
    def version(self) -> str:
        """The version that was applied last; empty if none was."""
        return "" if self.applied is None else self.applied["version"]

    def last(self, config: bytes) -> Message | None:
        """Return the specification that was applied last, with the endpoint's configuration of now.

        Raises:
            CorruptionError: what was kept of it is damaged.
        """
        if self.applied is None:
            return None
        spec = MaterializationSpec()
        try:
            spec.ParseFromString(zlib.decompress(base64.b64decode(self.applied["spec"], validate=True)))
        except (ValueError, KeyError, zlib.error, DecodeError) as error:
            raise CorruptionError(DAMAGED.said(what="the specification in the driver's state", why=error)) from error
        spec.config_json = config
        return spec

    def with_applied(self, spec: Message, version: str) -> Kept:
        """Return the state after ``spec`` was applied."""
        bare = MaterializationSpec()
        bare.CopyFrom(spec)
        bare.config_json = b""
        text = base64.b64encode(zlib.compress(bare.SerializeToString(deterministic=True))).decode()
        return Kept(self.connector, {"version": version, "spec": text})


def update_of(state: Message) -> StateUpdate | None:
    """Return what a connector's answer says of its state; None if it says nothing.

    Raises:
        ProtocolViolation: it is not JSON.
    """
    if not state.updated_json:
        return None
    try:
        return StateUpdate(msgspec.json.decode(state.updated_json), state.merge_patch)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"a connector's state is not JSON: {error}") from error
