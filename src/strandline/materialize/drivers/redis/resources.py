"""Whose the keys of a resource are, and how far its rows are; kept in two hashes beside the rows.

``strandline:owners`` says of each resource which task fills it and from which data (its state key).  Apply empties a
resource whose data are other ones before the first row of the new ones comes: it becomes the owner first, then it
refuses all sessions that are open, then it deletes keys as long as it is the owner, then it says that it has.  So what
a crash has left half empty is emptied again, a session of before stores no row behind the deletion, and a process that
wakes while it deletes keys finds that they are another's, or that they were deleted meanwhile.  A binding that empties
its resource and gives it up stays noted, so an older session of its task knows; any task may become the next owner.

``strandline:progress`` has the number of the last transaction of each resource and key range.  Redis may lose what it
has acknowledged (its file is written once a second; a replica that is promoted lags).  It loses the newest writes
first, so if this number is there, all rows before it are; if it is less than that in the recovery log, rows are lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from strandline.errors import ConfigError, DefinitionError, FencedError, Unavailable
from strandline.materialize.drivers.redis.exact import BEFORE_RANGE, FENCE, STORED, drop_all
from strandline.materialize.drivers.redis.left import LEFT, SESSIONS, lost, refuse_sessions
from strandline.materialize.drivers.redis.server import Change, Command, Fence, Server
from strandline.materialize.drivers.redis.texts import pattern, prefix
from strandline.materialize.protocol.refusals import FILLED_THERE, UNSUITED
from strandline.materialize.protocol.task import Binding, KeyRange, MaterializationSpec, given_up, location_of

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
