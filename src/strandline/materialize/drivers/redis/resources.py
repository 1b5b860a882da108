"""What the driver keeps in Redis beside the rows: owners, progress, session tokens, marks of written keys, and fences.

``strandline:owners`` says for each resource which task fills it and from which data (its state key).  If a resource
gets other data, Apply empties it before their first row comes, in four steps: it becomes the owner, it makes all open
sessions be refused, it deletes keys as long as it is the owner, and it notes that it is done.  So a resource that a
crash has left half empty is emptied again, an older session stores no row after the deletion, and a process that wakes
during its own deletion finds that the keys belong to another owner or are already deleted.  A binding that empties its
resource and gives it up stays noted, so that an older session of its task is refused; any task may become the next
owner.

``strandline:progress`` has the number of the last transaction of each resource and key range.  Redis may lose writes
that it has acknowledged: its file is written once a second, a promoted replica lags, an operator calls FLUSHALL.  It
loses the newest writes first.  So if this number is there, all rows before it are; if it is lower than in the recovery
log, rows are lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from strandline.errors import ConfigError, CorruptionError, DefinitionError, FencedError, StrandlineError, Unavailable
from strandline.materialize.drivers.redis.server import Change, Command, Fence, Server, pattern, prefix
from strandline.materialize.protocol.refusals import FILLED_THERE, LOST, UNSUITED
from strandline.materialize.protocol.task import Binding, KeyRange, MaterializationSpec, given_up, location_of
from strandline.store.clock import SystemIds

LEFT: Final = "strandline:left"
SESSIONS: Final = "strandline:sessions"
_FIELD: Final = b"at"
_KEEPING: Final = "; with appendonly yes and appendfsync always it would have kept them"
_BEFORE: Final = "\x1f"


@dataclass(slots=True)
class Left:
    """The token of one session of ``task``; ``fills`` is what a message calls its rows.

    Redis may lose writes that it has acknowledged, and its client connects again by itself, so a session may not
    notice.  So each session keeps a token in a hash of its own, ``strandline:left:…``, with a number that each of its
    writes raises.  A write watches that hash, and is refused unless it finds the token of the write before it.  Redis
    loses the newest writes first: if any write of the session is lost, its newest token is lost as well.
    """

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


STORED: Final = "strandline:stored"
FENCE: Final = "strandline:fence"
BEFORE_RANGE: Final = "\x1f"


@dataclass(frozen=True, slots=True)
class Marks:
    """The keys that one transaction, by its number, has written of a binding's resource.

    A transaction that was cut off is replayed, and reduces its rows with the stored ones, which may already be its own
    result.  So each key is marked in the same step (MULTI) in which it is written or deleted, and a replay leaves
    marked keys unchanged: it has the same changes, so their result is there.  The marks are a set for each resource and
    key range, ``strandline:stored:…``, named after the transaction; the set is dropped once the recovery log has
    committed the transaction.  The rows themselves look the same with and without marks.
    """

    key: bytes

    @staticmethod
    def of(binding: Binding, range_: KeyRange, transaction: int) -> Marks:
        """Return the marks of a transaction."""
        end = BEFORE_RANGE.join((binding.state_key, str(range_), str(transaction)))
        return Marks(f"{STORED}:{binding.resource}:{end}".encode())

    def mark(self, key: bytes) -> Command:
        """Return the command that marks a key."""
        return ("SADD", self.key, key)

    def marked(self, server: Server, keys: Sequence[bytes]) -> list[bool]:
        """Return which of ``keys`` are marked."""
        return [bool(found) for found in server.look([("SISMEMBER", self.key, key) for key in keys])]

    def any(self, server: Server) -> bool:
        """Return whether the transaction has written anything."""
        return bool(server.ask("EXISTS", self.key))

    def drop(self, server: Server) -> None:
        """Drop them."""
        server.ask("UNLINK", self.key)


def drop_all(server: Server, resource: str, fence: Fence) -> None:
    """Drop all marks of a resource that begins anew, as long as ``fence`` stands."""
    for keys in server.keys(pattern(f"{STORED}:{resource}")):
        server.change([(("UNLINK", key),) for key in keys], [fence])


def take(server: Server, binding: Binding, range_: KeyRange) -> Fence:
    """Take over a range of a resource: from now on no session can write that has a range in common with it.

    A process that was presumed dead may wake with a transaction that others have replayed and followed by later ones.
    So each resource has a hash ``strandline:fence:…`` with the session of each key range.  A session that opens removes
    all ranges that overlap its own; every write of rows watches the hash, and is refused if its session is no longer in
    it.
    """
    key, field = f"{FENCE}:{binding.resource}".encode(), str(range_).encode()
    number = int(server.ask("INCR", SESSIONS))
    token = f"{number}-{SystemIds().fresh('session')}".encode()  # a server that lost power may count again from before
    fence = Fence(key, field, token, f"the keys {binding.resource}:*")

    def change(held: dict[bytes, bytes]) -> list[Command]:
        newer = [each for each in held if int(held[each].partition(b"-")[0]) > number and _overlap(each, field)]
        if newer:
            raise FencedError(f"{fence.what} of {server.name} were taken over by another session")
        taken: list[Command] = [("HDEL", key, each) for each in held if _overlap(each, field)]
        return [*taken, ("HSET", key, field, token)]

    server.exchange(key, change)
    return fence


def _overlap(one: bytes, other: bytes) -> bool:
    """Return whether two ranges, as texts, have a hash in common.

    >>> _overlap(b"00000000-7fffffff", b"7fffffff-ffffffff"), _overlap(b"00000000-7ffffffe", b"7fffffff-ffffffff")
    (True, False)
    """
    (begin, end), (other_begin, other_end) = one.split(b"-"), other.split(b"-")
    return begin <= other_end and other_begin <= end


OWNERS: Final = "strandline:owners"
PROGRESS: Final = "strandline:progress"
OURS: Final = (OWNERS, PROGRESS, STORED, FENCE, SESSIONS, LEFT)
"""What the names of the driver's own keys begin with."""


class Owner(msgspec.Struct, frozen=True):
    """Which task fills a resource, and from which data.  ``emptying``: it still deletes what was there before."""

    task: str
    state_key: str
    emptying: bool = False

    @property
    def given_up(self) -> bool:
        """Whether it has deleted what there was, and fills the resource no longer."""
        return given_up(self.state_key) and not self.emptying


@dataclass(frozen=True, slots=True)
class Fit:
    """What has to be done before a binding can be filled; ``action`` says it (empty: nothing).

    ``held``: the owner of its keys now.
    """

    binding: Binding
    action: str
    held: Owner | None
    empties: bool = False


def fits(server: Server, spec: MaterializationSpec) -> list[Fit]:
    """Return what has to be done for each binding; changes nothing.

    Raises:
        DefinitionError: the keys of a resource are another's.
        FencedError: a later backfill fills them.
    """
    owners = {
        resource.decode(): msgspec.json.decode(owner, type=Owner)
        for resource, owner in (server.ask("HGETALL", OWNERS)).items()
    }
    return [_fit(server, spec.name, binding, owners) for binding in spec.bindings]


def _fit(server: Server, task: str, binding: Binding, owners: Mapping[str, Owner]) -> Fit:
    resource, owner = binding.resource, owners.get(binding.resource)
    filled = owner is not None and not owner.given_up
    elsewhere = owner is not None and binding.elsewhere(owner.state_key)
    ours = owner is not None and owner.task == task and not elsewhere
    if owner is not None and ours:
        binding.require_newest([owner.state_key])
    if binding.gives_up and not (filled and ours):
        return Fit(binding, "", owner)  # there is nothing (any longer) that it could delete
    for other, its in owners.items():
        beside = its.task == task and not binding.elsewhere(its.state_key)
        if other != resource and not (beside or its.given_up) and nested(other, resource):
            raise _of_another(other, its, elsewhere=binding.elsewhere(its.state_key))
    if owner is None or not filled:
        for found in server.keys(pattern(resource)):
            one, keys = found[0].decode(errors="replace"), f"the keys {prefix(resource)}*"
            what = f"{keys} of {server.name}, as {one!r}"
            raise DefinitionError(FILLED_THERE.said(whom="another program", what=what, rest=keys))
        return Fit(binding, f"took the keys {prefix(resource)}*", owner)
    if not ours:
        raise _of_another(resource, owner, elsewhere=elsewhere)
    if owner.state_key != binding.state_key or owner.emptying:
        return Fit(binding, f"emptied the keys {prefix(resource)}*, to fill them from the start", owner, empties=True)
    return Fit(binding, "", owner)


def _of_another(resource: str, owner: Owner, *, elsewhere: bool) -> DefinitionError:
    whom = f"materialization {owner.task!r}{' of another location' if elsewhere else ''}"
    rest = f"these keys and the field {resource!r} of the hash {OWNERS}"
    return DefinitionError(FILLED_THERE.said(whom=whom, what=f"the keys {prefix(resource)}*", rest=rest))


def make(server: Server, task: str, fit: Fit) -> None:
    """Do what ``fit`` says.

    Raises `Unavailable` if another session does it, or something else, with these keys: the log says whose turn it is.
    """
    if not fit.action:
        return
    try:
        _make(server, task, fit)
    except FencedError as error:
        raise Unavailable(f"{error}; it is tried again") from error


def _make(server: Server, task: str, fit: Fit) -> None:
    resource = fit.binding.resource
    field, owner = resource.encode(), Owner(task, fit.binding.state_key, emptying=fit.empties)

    def own(owners: dict[bytes, bytes]) -> list[Command]:
        held = msgspec.json.decode(owners[field], type=Owner) if field in owners else None
        if held != fit.held:
            raise FencedError(f"{server.name}: the keys {prefix(resource)}* were taken over by another session")
        return [("HSET", OWNERS, field, msgspec.json.encode(owner))]

    server.exchange(OWNERS.encode(), own)
    if fit.empties:
        mine = Fence(OWNERS.encode(), field, msgspec.json.encode(owner), f"the keys {prefix(resource)}*")
        refuse_sessions(server, task, location_of(fit.binding.state_key), mine)
        drop_all(server, resource, mine)
        for keys in server.keys(pattern(resource)):
            server.change([(("UNLINK", key),) for key in keys], [mine])
        of_before = [each for each in server.ask("HKEYS", PROGRESS) if _resource(each) == resource]
        server.change([(("HDEL", PROGRESS, each),) for each in of_before], [mine])
        filled = msgspec.json.encode(Owner(task, fit.binding.state_key))
        server.change([(("HSET", OWNERS, field, filled),)], [mine])


def require_keeping(server: Server) -> None:
    """Raise `ConfigError` if the server may drop rows by itself, or spreads keys over several servers."""
    memory = server.ask("INFO", "memory")
    policy = str(memory.get("maxmemory_policy", ""))
    if int(memory.get("maxmemory", 0)) and policy.startswith("allkeys"):
        about = {"has": f"has maxmemory-policy {policy}", "so": "it drops keys when its memory is full"}
        raise ConfigError(UNSUITED.said(endpoint=server.name, **about, to="maxmemory-policy noeviction"))
    if int((server.ask("INFO", "cluster")).get("cluster_enabled", 0)):
        about = {"has": "is part of a cluster", "so": "it holds only some of the keys"}
        raise ConfigError(UNSUITED.said(endpoint=server.name, **about, to="cluster-enabled no"))


def nested(one: str, other: str) -> bool:
    """Return whether some key may belong to both of two different resources.

    >>> nested("a", "a:b"), nested("a:b", "a"), nested("a", "ab")
    (True, True, False)
    """
    return prefix(one).startswith(prefix(other)) or prefix(other).startswith(prefix(one))


def require_owned(server: Server, spec: MaterializationSpec) -> None:
    """Raise `Unavailable` if the server does not say that the task fills its keys, as Apply had it say.

    It has lost that since, and keys that no one owns would be called another program's.
    """
    for fit in fits(server, spec):
        if fit.action:
            raise Unavailable(f"{server.name} has lost whose the keys {prefix(fit.binding.resource)}* are; tried again")


# --- progress ---------------------------------------------------------------------------------------------------------
def progress(bindings: Sequence[Binding], range_: KeyRange, transactions: Mapping[str, int]) -> Change:
    """Return the change that notes the last transaction of each binding."""
    return tuple(
        ("HSET", PROGRESS, _field(binding, str(range_)), str(transactions[binding.state_key]).encode())
        for binding in bindings
        if not binding.gives_up  # another may fill its resource by now
    )


def require_kept(server: Server, bindings: Sequence[Binding], range_: str, committed: Mapping[str, int]) -> None:
    """Compare the notes of `progress`, under a key range, with what was committed.

    Raises `CorruptionError`: the server has lost what it acknowledged.
    """
    held = server.ask("HGETALL", PROGRESS)
    for binding in (each for each in bindings if not each.gives_up):
        noted, wanted = held.get(_field(binding, range_)), committed.get(binding.state_key, 0)
        if int(noted or 0) < wanted:
            more = f" (they are at transaction {int(noted or 0)}, and {wanted} were committed)"
            raise lost(server.name, f"the keys {prefix(binding.resource)}*", binding.task, more)


def _field(binding: Binding, range_: str) -> bytes:
    return f"{binding.resource}{BEFORE_RANGE}{range_}".encode()


def _resource(field: bytes) -> str:
    return field.decode().rpartition(BEFORE_RANGE)[0]
