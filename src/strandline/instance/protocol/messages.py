"""Messages: what a controller commands a replica, and what the replica answers.

A *controller* sends commands, a *replica* responses.  Both are values: a command is the same whether it crosses a
queue or a network, and two are equal iff obeying the one is obeying the other.

A connection begins with `Hello` and `CreateInstance`.  Then the controller says again everything that the replica is to
run, and ends that with `InitializationComplete`: until then the replica only compares it with what it runs.  After it,
what was not mentioned is dropped.  So a controller that died, or a connection that was cut, leaves nothing behind.

An *id* names what runs: of an item its name in lower case.

No message is about subscriptions: a subscriber reads the shard of a view itself, so a subscription outlives every
controller and replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from strandline.algebra.schema import Column
from strandline.compute.sink.correction import Disagreement
from strandline.frontier import Frontier
from strandline.instance.commands import Advance, RunDataflow, RunIndex, RunIngestion, RunMaterialization
from strandline.problem import Case

# ---- commands --------------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True):
    """The first message of a connection.

    ``epoch``: the controller's generation; a replica obeys none that is older than the newest it has seen.
    ``writes``: the epoch under which shards are written, which rises less often.  ``location``: which one the
    controller is of.
    """

    epoch: int
    writes: int
    location: str


class CreateInstance(msgspec.Struct, frozen=True):
    """The instance that the replica is of.  What it runs already, and is not mentioned from here on, is dropped.

    ``replica``: what the controller calls this one.
    """

    instance: str
    replica: str


class UpdateConfiguration(msgspec.Struct, frozen=True):
    """Settings that change no answer, by name: those that are named replace those from before."""

    settings: dict[str, str]


Runnable: TypeAlias = RunIngestion | RunDataflow | RunMaterialization | RunIndex


@dataclass(frozen=True, slots=True)
class Create:
    """Have something run once it is scheduled.

    ``exports``: the ids of what comes of it, at least one; for a source one for each table that it feeds.  ``as_of``:
    the time from which on its exports must be readable, where no shard says so (an index); None: a shard does.
    ``alone``: only one replica may run it at a time.
    """

    id: str
    exports: tuple[str, ...]
    what: Runnable
    as_of: int | None = None
    alone: bool = False


class Schedule(msgspec.Struct, frozen=True):
    """Begin what was created."""

    id: str


class AllowWrites(msgspec.Struct, frozen=True):
    """Let what was created write.  It may have been read-only until now."""

    id: str


class AllowCompaction(msgspec.Struct, frozen=True):
    """No reader asks for times of the export ``id`` before ``frontier``; empty: nor for any: end it."""

    id: str
    frontier: Frontier


class Peek(msgspec.Struct, frozen=True):
    """Look at the rows of an index that have one of the keys, at ``as_of``; at most ``limit`` of them (None: all).

    ``id``: the export of the index, so that another one of its name never answers.  ``key``: its columns with a row
    for each key, in the format of Arrow IPC, so that their types are Arrow's.  ``uuid``: what the answer is called by.
    """

    uuid: str
    id: str
    key: bytes
    as_of: int
    limit: int | None = None


class CancelPeeks(msgspec.Struct, frozen=True):
    """Answer these no more; each is answered once all the same, that it was cancelled."""

    uuids: tuple[str, ...]


class InitializationComplete(msgspec.Struct, frozen=True):
    """Everything has been said that is to run: what was not mentioned is dropped, what is new begins."""


Command: TypeAlias = (
    Hello
    | CreateInstance
    | UpdateConfiguration
    | Create
    | Schedule
    | AllowWrites
    | AllowCompaction
    | Advance
    | Peek
    | CancelPeeks
    | InitializationComplete
)

# ---- responses -------------------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True):
    """The answer to `Hello`: the replica obeys.  ``incarnation``: another one for each process."""

    incarnation: str


REPLICA: Final = "(replica)"
"""In the place of an item's name: the replica as a whole does not go on."""
UPKEEP: Final = "(upkeep)"
"""In the place of an item's name: merges and garbage collection that have failed in the replica."""


class Refused(msgspec.Struct, frozen=True):
    """A command was not obeyed, and why.

    The connection ends if it was `Hello`; a frame of another format is refused as `Hello`, too.
    ``succeeded``: the controller was, by a newer one.  ``id``: what the command was about; empty: the replica as a
    whole.
    """

    command: str
    why: str
    succeeded: bool = False
    id: str = ""


class Frontiers(msgspec.Struct, frozen=True):
    """What has changed of how far things are, since the last message of this connection.

    ``writes``: of exports, the upper, or the time before which an endpoint has everything.  ``needs``: by
    shard, the time from which on the replica must be able to read it; empty: no more.  ``advanced``: the turn of the
    last `Advance` that is done: whatever stands still then has said why.  ``gone``: what is no longer written here,
    since it was ended: this replica no longer knows how far it is.
    """

    writes: dict[str, Frontier] = {}
    needs: dict[str, Frontier] = {}
    advanced: int | None = None
    gone: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """What has changed of what stands in the way, since the last message of this connection.

    ``problems``: by id, or by what else they are noted under; empty: it has none now.  ``under_way``: by id, since when
    (milliseconds) something is done for it; None: no more.  ``counters``: live ones (`instance/live.py`) that changed.
    ``disagreements``: by shard, also of internal stages, the last race in which another replica's rows were others.
    ``writers``: by shard, the names by which the shard knows what this replica appends.  ``notices``: by id, remarks
    about a source that goes on.  ``added``: by id, the columns that a collection of a source is to get, because its
    upstream has got them.  ``vanished``: by the name of one of these five, the names in it that there are no more.
    ``cases``: what those of ``problems`` tell of that are declared; ``notice_cases``: the same of each notice.  A peer
    of an earlier version sends none.
    """

    problems: dict[str, str] = {}
    under_way: dict[str, int | None] = {}
    counters: dict[str, int] = {}
    disagreements: dict[str, Disagreement] = {}
    writers: dict[str, tuple[str, ...]] = {}
    notices: dict[str, tuple[str, ...]] = {}
    vanished: dict[str, tuple[str, ...]] = {}
    added: dict[str, tuple[Column, ...]] = {}
    cases: dict[str, tuple[Case, ...]] = {}
    notice_cases: dict[str, tuple[tuple[Case, ...], ...]] = {}


class Reconciled(msgspec.Struct, frozen=True):
    """What `InitializationComplete` came to: what runs on, what runs anew and why (by reason), what was ended."""

    reused: int
    replaced: dict[str, int]
    dropped: int
    created: int


class PeekResponse(msgspec.Struct, frozen=True):
    """The one answer to a `Peek`: ``rows`` in the format of Arrow IPC; or ``error``, or that it was ``cancelled``.

    A row is there as often as the collection has it.
    """

    uuid: str
    rows: bytes | None = None
    error: str = ""
    cancelled: bool = False


Response: TypeAlias = Welcome | Refused | Frontiers | Status | Reconciled | PeekResponse


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message that this version does not know, by the name of its kind: it is refused, and costs nothing else.

    ``why``: its kind is known, and its fields cannot be read; empty: its kind is not known.
    """

    name: str
    fields: Mapping[str, object] = field(default_factory=dict)
    why: str = field(default="", compare=False)
