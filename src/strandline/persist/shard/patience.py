"""Retries of store calls: how many, with which pauses, and until when; and the counters that show them.

By default persist retries `ATTEMPTS_MAX` times, but not for longer than `PATIENCE_S`: a store that refuses uses up the
attempts, one that is silent the time.  A caller's `Deadline` ends the retries earlier.  A call in flight is never cut
off, because its outcome must be known: a wait ends late rather than in doubt.

Because of the retries a store that fails every other time only looks slow; `Metrics` shows the failures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, TypeVar

from strandline.errors import Indeterminate, StoreError, Unavailable
from strandline.store.clock import Clock
from strandline.store.protocols import Blob


@dataclass(slots=True)
class Metrics:
    """Counters of one `PersistClient`; all of them only grow.

    Each process keeps its counters in memory, for operators; no decision depends on them.
    """

    retries: int = 0
    """Calls to a store that were repeated, after a failure or a lost race."""
    indeterminate: int = 0
    """Calls to a store whose outcome is unknown."""
    witness_hits: int = 0
    """Commits that landed although their answer was lost, recognised by what they left in the state."""
    corruption_errors: int = 0
    """Stored objects that failed their check."""
    notices: int = 0
    """Versions that came with a notice and did not have to be fetched."""
    upkeep_failures: int = 0
    """Rollups, merges and collections that were due after a commit and could not be done; tried again later."""
    compactions: int = 0
    """Merges whose output replaced their inputs."""
    large_compactions: int = 0
    """The large ones among them: an environment carries these out between commits."""
    gc_runs: int = 0
    """Collections of garbage that were carried out."""
    parts_deleted: int = 0
    """Objects that collections of garbage deleted."""

    def counts(self) -> dict[str, int]:
        """Return the counters by name."""
        return asdict(self)


T = TypeVar("T")

ATTEMPTS_MAX: Final = 64
PAUSE_S_MAX: Final = 1.0
PATIENCE_S: Final = 60.0


def pause_s(attempt: int) -> float:
    """Return the pause after attempt number ``attempt``, counted from 0.

    >>> pause_s(0), pause_s(3), pause_s(60)
    (0.005, 0.04, 1.0)
    """
    return min(PAUSE_S_MAX, 0.005 * 2.0 ** min(attempt, 10))


class Deadline:
    """A deadline ``seconds`` from now.  A clock that is set back does not move it."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._left_s = seconds
        self._seen_ms = clock.now_ms()

    def left_s(self) -> float:
        """Return how many seconds are left; 0 or less: it has passed."""
        now = self._clock.now_ms()
        self._left_s -= max(0, now - self._seen_ms) / 1000
        self._seen_ms = now
        return self._left_s

    def half(self) -> Deadline:
        """Return a deadline in the middle of what is left: of a caller that has more to wait for afterwards."""
        return Deadline(self._clock, self.left_s() / 2)

    async def pause(self, attempt: int) -> bool:
        """Pause after attempt number ``attempt``, counted from 0; return False at once if no time is left for it."""
        seconds = pause_s(attempt)
        if self.left_s() <= seconds:
            return False
        await self._clock.sleep(seconds)
        return True


class PatientBlob:
    """A `Blob` for parts, which are written once under a fresh key: it retries while ``inner`` fails.

    A lost answer does no harm: writing the same bytes again gives the same part, and nothing names it yet.  So after
    the last attempt this raises `Unavailable`, because nothing visible has happened.  (A write that arrives so late
    that its part was collected meanwhile leaves a leak, which a sweep finds.)
    """

    def __init__(self, inner: Blob, clock: Clock, metrics: Metrics) -> None:
        self._inner = inner
        self._clock = clock
        self._metrics = metrics

    async def get(self, key: str) -> bytes | None:
        """See `Blob.get`."""
        return await self._patiently(key, partial(self._inner.get, key))

    async def set(self, key: str, data: bytes) -> None:
        """See `Blob.set`."""
        await self._patiently(key, partial(self._inner.set, key, data))

    async def delete(self, key: str) -> bool:
        """See `Blob.delete`; called once without retries, because a sweep deletes what stays behind."""
        return await self._inner.delete(key)

    async def list(self, prefix: str) -> list[str]:
        """See `Blob.list`."""
        return await self._patiently(prefix, partial(self._inner.list, prefix))

    async def _patiently(self, key: str, call: Callable[[], Awaitable[T]]) -> T:
        last: StoreError | None = None
        patience = Deadline(self._clock, PATIENCE_S)
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await call()
            except StoreError as error:
                last = error
                self._metrics.retries += 1
                self._metrics.indeterminate += isinstance(error, Indeterminate)
                if not await patience.pause(attempt):
                    break
        raise Unavailable(f"Blob does not answer for {key!r} in {attempt + 1} attempts ({last}): try again later")
