"""What simulated actors work with: stores, clock, ids and notices, each of whose calls is an I/O point.

The run may lose, repeat, damage, delay and reorder notices between processes.  Code that uses notices must give the
same answers with these as without notices; notices may only reduce latency.

An actor may have several coroutines that go on concurrently, as calls of one process do (`SideBySide`).  See
`strandline.testing.simulation.kernel`.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from strandline.persist.notices import Notice, Subscription
from strandline.store.protocols import (
    Blob,
    Committed,
    CompareAndSet,
    Consensus,
    Mismatch,
    ObjectStore,
    Tagged,
    Versioned,
)
from strandline.store.unreliable import Choose, some_of
from strandline.testing.simulation.exploration import FAULT
from strandline.testing.simulation.kernel import (
    CHANGE,
    READ,
    WAIT,
    Acting,
    Crashed,
    Fate,
    IoPoint,
    Simulation,
    bury,
    nothing,
    run_sync,
)

T = TypeVar("T")


def _point(
    site: str,
    method: Callable[..., Coroutine[Any, Any, T]],
    arguments: tuple[object, ...],
    fates: tuple[Fate, ...] = CHANGE,
) -> IoPoint[T]:
    """Return the I/O point that is ``method`` of a place, called with ``arguments``."""
    return IoPoint(site, arguments, lambda: run_sync(method(*arguments)), fates)


class SimBlob:
    """A `Blob` whose every call is an I/O point, performed on ``place``, a Blob that never suspends."""

    def __init__(self, place: Blob) -> None:
        self._place = place

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        return await _point("blob.get", self._place.get, (key,), READ)

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``."""
        await _point("blob.set", self._place.set, (key, data))

    async def delete(self, key: str) -> bool:
        """Remove ``key``; return whether it existed."""
        return await _point("blob.delete", self._place.delete, (key,))

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return await _point("blob.list", self._place.list, (prefix,), READ)


class SimConsensus:
    """A `Consensus` whose every call is an I/O point, performed on ``place``, which never suspends."""

    def __init__(self, place: Consensus) -> None:
        self._place = place

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        return await _point("consensus.head", self._place.head, (key,), READ)

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        return await _point("consensus.compare_and_set", self._place.compare_and_set, (request,))

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone; of an unreported call any part may have happened."""
        site, asked = "consensus.compare_and_set_many", tuple(requests)

        def do(these: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
            return run_sync(self._place.compare_and_set_many(these))

        return await IoPoint(site, asked, lambda: do(asked), partly=lambda choose: do(some_of(asked, choose)))

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        return await _point("consensus.scan", self._place.scan, (key, start, limit), READ)

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many."""
        return await _point("consensus.truncate", self._place.truncate, (key, seqno))

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return await _point("consensus.list_keys", self._place.list_keys, (), READ)


class SimClock:
    """A `Clock` with the simulation's time plus ``skew_ms``, which a world may change at any step."""

    def __init__(self, simulation: Simulation, skew_ms: int = 0) -> None:
        self._simulation = simulation
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """Return milliseconds since the epoch by this clock."""
        return self._simulation.now_ms + self.skew_ms

    async def sleep(self, seconds: float) -> None:
        """Wait for at least ``seconds`` of simulated time."""
        await IoPoint("clock.sleep", (seconds,), nothing, WAIT, delay_ms=max(0, round(seconds * 1000)))


class SimIds:
    """`Ids` that count; all actors of a simulation share one."""

    def __init__(self) -> None:
        self._given = 0

    def fresh(self, kind: str) -> str:
        """Return a new name that starts with ``kind``."""
        self._given += 1
        return f"{kind}-{self._given}"


class SideBySide:
    """Runs the coroutines of one actor concurrently, as a process does; the run chooses whose I/O is next.

    If one of them raises, the others are cancelled, and the error is raised.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    async def __call__(self, calls: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Return when all have ended."""
        await _Interleaved(list(calls), self._choose)


class _Interleaved:
    def __init__(self, calls: list[Acting], choose: Choose) -> None:
        self._calls = calls
        self._choose = choose

    def __await__(self) -> Generator[IoPoint[Any], Any, None]:
        waiting: list[tuple[Acting, IoPoint[Any]]] = []
        try:
            for call in self._calls:
                _go_on(call, None, None, waiting)
            while waiting:
                call, point = waiting.pop(self._choose("sibling", len(waiting)) if len(waiting) > 1 else 0)
                reply, error = yield from _replied(point)
                _go_on(call, reply, error, waiting)
        except Crashed:
            for call in self._calls:
                bury(call)
            raise
        except Exception:
            for call, _ in waiting:
                yield from _cancelled(call)
            raise


def _replied(point: IoPoint[Any]) -> Generator[IoPoint[Any], Any, tuple[object, Exception | None]]:
    try:
        reply = yield point
    except Exception as error:  # noqa: BLE001  # the error belongs to the coroutine that waited
        return None, error
    return reply, None


def _go_on(
    call: Acting, reply: object, error: BaseException | None, waiting: list[tuple[Acting, IoPoint[Any]]]
) -> None:
    """Run ``call`` up to its next I/O, which is added to ``waiting``, or to its end."""
    try:
        point = call.send(reply) if error is None else call.throw(error)
    except StopIteration:
        return
    waiting.append((call, point))


def _cancelled(call: Acting) -> Generator[IoPoint[Any], Any, None]:
    """Cancel ``call`` and let it clean up; errors of the cleanup are dropped, as in a task group."""
    waiting: list[tuple[Acting, IoPoint[Any]]] = []
    try:
        _go_on(call, None, CancelledError(), waiting)
        while waiting:
            reply, error = yield from _replied(waiting.pop()[1])
            _go_on(call, reply, error, waiting)
    except (Exception, CancelledError):  # noqa: BLE001  # the first failure is raised
        return


HOP_MS: Final = 2
"""The latency of a notice that is not late."""
LOOKS: Final = 8
"""How often a wait polls for a notice; the kernel has no other way to wake it."""


class SimNotices:
    """Carries notices from each `SimNotifier` to all subscriptions."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.listening: list[SimSubscription] = []
        self.carried = 0
        self.heard = 0

    def publish(self, notice: Notice) -> None:
        """Carry a notice to the subscribers of its shard; each may lose it, or get it damaged, independently."""
        for subscription in self.listening:
            if subscription.shard == notice.shard:
                self.carried += 1
                match self.simulation.choose(FAULT + "notice.publish", 4):
                    case 0:
                        subscription.flying.append(notice)
                    case 1:
                        pass  # lost
                    case 2:
                        subscription.flying.append(msgspec.structs.replace(notice, diff=_damaged(notice.diff)))
                    case _:
                        subscription.flying.append(msgspec.structs.replace(notice, diff=b""))

    async def subscribe(self, shard: str) -> Subscription:
        """Listen for the versions of ``shard``."""
        return SimSubscription(self, shard)


class SimSubscription:
    """The notices of one shard for one reader."""

    def __init__(self, notices: SimNotices, shard: str) -> None:
        self.shard = shard
        self.flying: list[Notice] = []
        self._notices = notices
        notices.listening.append(self)

    async def next(self, timeout_s: float) -> Notice | None:
        """Wait, and return any notice in flight, or None; it may stay in flight and come again."""
        late = self._notices.simulation.choose(FAULT + "notice.late", 2)
        for _ in range(1 if late else LOOKS):
            waits = HOP_MS if self.flying and not late else round(timeout_s * 1000) // (1 if late else LOOKS)
            notice = await IoPoint("notice.next", (self.shard,), self._take, WAIT, delay_ms=waits)
            if notice is not None:
                return notice
        return None

    def close(self) -> None:
        """Stop listening."""
        self._notices.listening.remove(self)

    def _take(self) -> Notice | None:
        if not self.flying:
            return None
        choose = self._notices.simulation.choose
        at = choose(FAULT + "notice.order", len(self.flying))
        again = choose(FAULT + "notice.again", 2)
        self._notices.heard += 1
        return self.flying[at] if again else self.flying.pop(at)


def _damaged(diff: bytes) -> bytes:
    return diff[:-1] + bytes([diff[-1] ^ 1]) if diff else diff


class SimObjects(SimBlob):
    """An `ObjectStore` done on ``place``: one that never suspends."""

    def __init__(self, place: ObjectStore) -> None:
        super().__init__(place)
        self._objects = place

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is stored under ``key``; return whether it was stored."""
        return await IoPoint("blob.create", (key, data), lambda: run_sync(self._objects.create(key, data)))

    async def read(self, key: str) -> Tagged | None:
        """Return what is stored under ``key`` with its tag, or None."""
        return await IoPoint("blob.read", (key,), lambda: run_sync(self._objects.read(key)), READ)

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff what is stored under ``key`` has ``tag``; return whether it was stored."""
        return await IoPoint("blob.replace", (key, tag, data), lambda: run_sync(self._objects.replace(key, tag, data)))
