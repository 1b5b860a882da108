"""What the stores themselves see: every version of every shard as it is committed, every object as it goes.

These doubles stand where the real stores would, below the simulated I/O, and hold what really happens (whatever the
callers learn of it) against the laws of durable things:

- P2: since, upper, epoch and walltime of a shard never go back, and its seqnos have no gaps.
- P5g: a part outlives the last version that named it by the grace period, as far as clocks agree, read or not.
- lease: no reader is dropped before a whole lease has passed, on the shard's own clock, since the shard heard of it.
- swept: a part that a committed transaction names is there until its table names it.
- P5: what a version names (its newest rollup, its parts) is in Blob when it is committed, and stays there as long as
  the newest version names it.
- fence: every append has an epoch that is not older than any admitted before.
- rollup: a rollup holds exactly the state at its seqno.
- holds: since is not beyond any reader's, critical or leased; P5 holds for the versions that leases hold, too.

They read the bytes at rest by themselves (a rollup is ``[format, seqno, entries]``, a diff ``[format, seqno, set,
removed, seqno and key of the newest rollup]``), so that what they find does not rest on the code that they watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from laws.broken import require
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch, Versioned
from strandline.store.seal import Kind, unseal

Flat = dict[str, Any]

MONOTONE: Final = ("since", "upper", "epoch", "walltime_ms")
HOLDS: Final = ("critical/", "leased/")
"""How the names of holds begin; the since that is held comes first in each."""
BATCHES: Final = ("batch/", "unsealed/")
EMPTY: Final = float("inf")
"""How the empty frontier compares: beyond all times."""
BLOB_PART: Final = 1
"""How the codec marks a part that lies in Blob; its key comes next."""


class WatchedPlaces:
    """A Blob and a Consensus in memory, watched.  Keys for which ``is_shard`` is false are not looked into."""

    def __init__(self, is_shard: Callable[[str], bool]) -> None:
        self._is_shard = is_shard
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, list[Versioned]] = {}
        self.blob = _WatchedBlob(self)
        self.consensus = _WatchedConsensus(self)
        self.states: dict[str, list[Flat]] = {}
        self.rollups_named = 0
        self._deleted: set[str] = set()
        self._returned: set[str] = set()
        self.lease_ms = 0
        self.leaving: set[str] = set()
        """Readers that have begun to give up their leases."""
        self._heard: dict[tuple[str, str], int] = {}  # when a shard last heard of a reader, by its own clock
        self._died: dict[str, int] = {}  # when the newest version ceased to name a part, by the true time
        self._appended: set[str] = set()  # parts that a version once named
        self._promised: set[str] = set()  # parts that the newest version of a log names for a table
        self.now_ms: Callable[[], int] = int
        self.grace_ms = 0
        """How long a part that the newest version no longer names is there at least."""
        self.logs: frozenset[str] = frozenset()
        """The shards whose records name parts of others."""

    def fill(self, others: WatchedPlaces) -> None:
        """Begin with what lies in ``others``."""
        self.objects.update(others.objects)
        self.versions.update({key: list(held) for key, held in others.versions.items()})
        self.states.update({key: list(held) for key, held in others.states.items()})

    def committed(self, key: str, new: Versioned) -> None:
        """Look at a version that was just installed."""
        if not self._is_shard(key):
            return
        body = unseal(Kind.DIFF, f"{key}/{new.seqno}", new.data)
        _, _, changed, removed, _, rollup = msgspec.msgpack.decode(body)
        states = self.states.setdefault(key, [])
        before = states[-1] if states else self._rollup(rollup)[1]  # a shard begins with its first rollup
        after = before | changed
        for name in removed:
            del after[name]
        states.append(after)
        for name in MONOTONE:
            if name in changed and name in before:
                was, now = _number(before[name]), _number(changed[name])
                require("P2", was <= now, f"{name} of {key} went back from {was} to {now} at version {new.seqno}")
        require("P2", new.seqno == len(states), f"version {len(states)} of {key} has the seqno {new.seqno}")
        for name in sorted(_objects(changed) | {rollup}):
            require("P5", name in self.objects, f"version {new.seqno} of {key} names {name}, which is not in Blob")
        for name, value in changed.items():
            kind, _, rest = name.partition("/")
            if kind == "writer" and before.get(name) != value:
                epoch = before.get("epoch", 0)
                require("fence", value[2] >= epoch, f"{rest} appended to {key} under {value[2]}; {epoch} was admitted")
            if kind == "rollup" and name not in before:
                self._check_rollup(key, int(rest), value)
        self._follow(key, before, after, (*changed, *removed))
        for name in changed:
            if name.startswith("leased/"):
                self._heard[key, name] = before["walltime_ms"]
        for name in removed:
            if name.startswith("leased/") and name.removeprefix("leased/") not in self.leaving:
                silent = after["walltime_ms"] - self._heard[key, name]
                require("lease", silent > self.lease_ms, f"{name} of {key} is dropped after {silent} ms of silence")
        if "since" in changed or any(name.startswith(HOLDS) for name in changed):
            for name, value in after.items():
                if name.startswith(HOLDS):
                    beyond = _number(after["since"]) > _number(value[0])
                    require("holds", not beyond, f"since of {key} is {after['since']}, beyond {name} at {value[0]}")

    def _follow(self, key: str, before: Flat, after: Flat, touched: Iterable[str]) -> None:
        """Note which parts a version no longer names, and which ones a log names for its tables."""
        batches = [name for name in touched if name.startswith(BATCHES)]
        if not batches:
            return
        was, now = _objects(before), _objects(after)
        for name in was - now:
            self._died[name] = self.now_ms()
        for name in now - was:
            self._died.pop(name, None)
            self._promised.discard(name)
            self._appended.add(name)
        if key in self.logs:
            for name in batches:
                if name in after:
                    self._promised |= self._named_by(after[name]) - self._appended

    def _named_by(self, batch: Any) -> set[str]:
        """Return the parts that the records of a log's batch name for a table."""
        found: set[str] = set()
        for part in batch[3]:
            blob = part[0] == BLOB_PART
            body = unseal(Kind.RECORDS, part[1], self.objects[part[1]]) if blob else part[1]
            for data, _, diff in msgspec.msgpack.decode(body):
                kind, *rest = msgspec.msgpack.decode(data)
                if kind == "write" and diff > 0:
                    found |= {each[1] for each in rest[3][2] if each[0] == BLOB_PART}
        return found

    def going(self, name: str) -> None:
        """Look at an object that is about to be deleted."""
        require("swept", name not in self._promised, f"{name} is deleted, and a committed transaction names it")
        died = self._died.get(name)
        if died is not None and "/rollup/" not in name:
            spared = self.now_ms() - died
            require("P5g", spared >= self.grace_ms, f"{name} is deleted {spared} ms after it was last named")
        for key, states in self.states.items():
            require("P5", name not in _objects(states[-1]), f"{name} is deleted, and {key} names it")
            oldest = min((v[1] for n, v in states[-1].items() if n.startswith("leased/")), default=len(states))
            for seqno, flat in enumerate(states[oldest - 1 : -1], oldest):
                held = f"{name} is deleted, and a reader of {key} holds version {seqno}, which names it"
                # A reader has the version in hand: it needs the parts that it names, and no rollup to find it.
                require("P5", "/rollup/" in name or name not in _objects(flat), held)

    def gone(self, name: str) -> None:
        """Note that an object was deleted."""
        self._deleted.add(name)

    def came(self, name: str) -> None:
        """Note that an object was written."""
        if name in self._deleted:
            self._returned.add(name)

    def check_unnamed(self, key: str, name: str) -> None:
        """Check that an object which a reader did not find is no longer named."""
        require("P5", name not in _objects(self.states[key][-1]), f"{key} names {name}, which is not in Blob")

    def truncated(self, key: str, before: int) -> None:
        """Look at a history whose beginning was just forgotten: what follows the newest rollup must be there."""
        if not self._is_shard(key):
            return
        first, newest = self.versions[key][0].seqno, self.states[key][-1]
        rollup = max(int(name.removeprefix("rollup/")) for name in newest if name.startswith("rollup/"))
        require("rollup", first <= rollup + 1, f"{key} begins at version {first}, long after its rollup {rollup}")
        held = min((v[1] for n, v in newest.items() if n.startswith("leased/")), default=first)
        require("holds", first <= max(held, before), f"{key} begins at version {first}; {held} is held")

    def check_collected(self, key: str) -> None:
        """Check, when all is collected, that no object is left that versions once named and none names now.

        What was written anew after it was deleted, by a request that was long thought lost and asked again, is a leak.
        """
        first = self.versions[key][0].seqno
        once = frozenset().union(*(_objects(flat) for flat in self.states[key]))
        named = frozenset().union(*(_objects(flat) for flat in self.states[key][first - 1 :]))
        left = sorted((once - named) & self.objects.keys() - self._returned)
        require("P5", not left, f"{left} are left, and only forgotten versions named them")

    def check_no_garbage(self, key: str) -> None:
        """Check, when all is collected, that nothing of a shard is there which its newest versions do not name."""
        first = self.versions[key][0].seqno
        named = frozenset().union(*(_objects(flat) for flat in self.states[key][first - 1 :]))
        left = sorted(name for name in self.objects if name.startswith(f"{key}/") and name not in named)
        require("P5", not left, f"{left} are left, and nothing names them")

    def check_all_there(self) -> None:
        """Check, at the end, that every object which some shard names is there."""
        for key, states in self.states.items():
            missing = _objects(states[-1]) - self.objects.keys()
            require("P5", not missing, f"{key} names {sorted(missing)}, which are not in Blob")

    def _rollup(self, name: str) -> tuple[int, Flat]:
        _, seqno, flat = msgspec.msgpack.decode(unseal(Kind.ROLLUP, name, self.objects[name]))
        return seqno, flat

    def _check_rollup(self, key: str, seqno: int, name: str) -> None:
        self.rollups_named += 1
        same = self._rollup(name) == (seqno, self.states[key][seqno - 1])
        require("rollup", same, f"{name} is not the state of {key} at version {seqno}")


class _WatchedBlob(MemoryBlob):
    def __init__(self, places: WatchedPlaces) -> None:
        super().__init__(places.objects)
        self._places = places

    async def delete(self, key: str) -> bool:
        self._places.going(key)
        there = await super().delete(key)
        self._places.gone(key)
        return there

    async def set(self, key: str, data: bytes) -> None:
        await super().set(key, data)
        self._places.came(key)


class _WatchedConsensus(MemoryConsensus):
    def __init__(self, places: WatchedPlaces) -> None:
        super().__init__(places.versions)
        self._places = places

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        outcome = await super().compare_and_set(request)
        if isinstance(outcome, Committed):
            self._places.committed(request.key, request.new)
        return outcome

    async def truncate(self, key: str, seqno: int) -> int:
        first = self._places.versions[key][0].seqno if key in self._places.versions else 0
        gone = await super().truncate(key, seqno)
        self._places.truncated(key, first)
        return gone

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        return [await self.compare_and_set(request) for request in requests]


def _number(value: float | None) -> float:
    return EMPTY if value is None else value


def _objects(flat: Flat) -> frozenset[str]:
    return frozenset(_named(flat))


def _named(flat: Flat) -> Iterator[str]:
    for name, value in flat.items():
        match name.partition("/")[0]:
            case "rollup":
                yield value
            case "batch":
                yield from (part[1] for part in value[3] if part[0] == BLOB_PART)
            case "unsealed":
                yield from (part[1] for part in value[2] if part[0] == BLOB_PART)
