"""What a session left on the server: each of its writes looks for it in the same step, and leaves the next.

Redis may lose what it has acknowledged: a file that is written once a second, a replica that lags and is promoted, an
operator's FLUSHALL.  Its client connects again by itself, so a session may not notice.  So each session keeps a token,
with a number that each of its writes raises, in a hash of its own, ``strandline:left:…``.  A write watches that hash,
and is refused unless the token is the one that the write before left.  Redis loses the newest writes first, so whatever
is lost of the session, its newest token is lost as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline.errors import CorruptionError, FencedError, StrandlineError
from strandline.materialize.drivers.redis.server import Command, Fence, Server
from strandline.materialize.drivers.redis.texts import pattern
from strandline.materialize.protocol.refusals import LOST
from strandline.materialize.protocol.task import KeyRange, MaterializationSpec, location_of
from strandline.store.system import SystemIds

LEFT: Final = "strandline:left"
SESSIONS: Final = "strandline:sessions"
_FIELD: Final = b"at"
_KEEPING: Final = "; with appendonly yes and appendfsync always it would have kept them"
_BEFORE: Final = "\x1f"


@dataclass(slots=True)
class Left:
    """The token of one session of ``task``; ``fills`` is what a message calls its rows."""

    key: bytes
    number: int
    session: str
    fills: str
    task: str
    writes: int = 0

    def look(self) -> tuple[bytes, bytes]:
        """Return the hash and the field that have the token."""
        return self.key, _FIELD

    def leave(self) -> Command:
        """Return the command that leaves the next token."""
        return ("HSET", self.key, _FIELD, self._token(self.writes + 1))

    def was_left(self) -> None:
        """Count a write that was done."""
        self.writes += 1

    def refusal(self, found: bytes | None, server: str) -> StrandlineError | None:
        """Return why nothing may be written; None: ``found`` is the token that was left.

        A write whose answer was lost may have been done: then its token is there.
        """
        if found == self._token(self.writes + 1):
            self.was_left()
        if found == self._token(self.writes):
            return None
        if found is not None and int(found.split(b"-")[0]) > self.number:
            return FencedError(f"{self.fills} of {server} were taken over by another session")
        return lost(server, self.fills, self.task)

    def _token(self, writes: int) -> bytes:
        return f"{self.number}-{self.session}-{writes}".encode()


def lost(server: str, fills: str, task: str, more: str = "") -> CorruptionError:
    """Return the error for rows that the server had acknowledged and does not have; ``more`` says how it is known."""
    return CorruptionError(LOST.said(endpoint=server, what=fills, item=task, more=f"{more}{_KEEPING}"))


def begin(server: Server, spec: MaterializationSpec, range_: KeyRange) -> Left:
    """Leave the first token of a session.  Raises `FencedError` if one that was opened later has left its own."""
    number = int(server.ask("INCR", SESSIONS))
    location = location_of(spec.bindings[0].state_key) if spec.bindings else ""
    key = _begin(location, spec.name) + str(range_).encode()
    fills = ", ".join(f"the keys {binding.resource}:*" for binding in spec.bindings)
    left = Left(key, number, SystemIds().fresh("session"), fills, spec.name)

    def change(held: dict[bytes, bytes]) -> list[Command]:
        newer = _FIELD in held and int(held[_FIELD].split(b"-")[0]) > number
        if newer:
            raise FencedError(f"{fills} of {server.name} were taken over by another session")
        return [left.leave()]

    server.exchange(key, change)
    left.was_left()
    return left


def refuse_sessions(server: Server, task: str, location: str, fence: Fence) -> None:
    """Have no session of ``task`` write again that has left a token, as long as ``fence`` stands.

    A session that leaves its first token later looks after that whose the keys are, and finds the owner that ``fence``
    names.
    """
    begin = _begin(location, task)
    token = f"{int(server.ask('INCR', SESSIONS))}-{SystemIds().fresh('session')}-0".encode()
    for found in server.keys(pattern(LEFT)):
        keys = [key for key in found if key.startswith(begin)]
        server.change([(("HSET", key, _FIELD, token),) for key in keys], [fence])


def _begin(location: str, task: str) -> bytes:
    """Return what the keys of the tokens of a task begin with, before the key range."""
    return f"{LEFT}:{location}{_BEFORE}{task}{_BEFORE}".encode()
