"""Consensus in an object store, by conditional puts; it needs no other server.

Per key, all below one path:

    first             the first version, created if absent; never deleted: it shows that the key is not fresh
    v/<seqno>         every later version, created if absent; never read below the marker
    truncated_below   the marker: versions below it are deleted or being deleted; a conditional put moves it up
    hint              a seqno not far below the head

A writer that creates ``v/<n>`` has won version n if n - 1 was the head.  Making sure of that takes care:

- **Truncation removes witnesses.**  The marker is durable before anything is deleted, and a writer reads it before and
  after it creates.  Below the marker before: a `Mismatch`.  Below it only after: another process truncated meanwhile,
  and it is unknown whether our version was one of those deleted or is garbage among them: `Indeterminate`.
- **A late create leaves garbage below the marker.**  No reader reads there, and the next truncation deletes it.
- **An absent version need not be the end**, because it may have been deleted.  So a reader that meets an absent version
  reads the marker once more, and starts again if the marker has moved past it.
- **Listings are never trusted** to say what exists; they only help to sweep.

To find the head, a reader starts at the newest version this process has seen, or the hint, or the marker, or the first
version, and reads forward.

Cost on a quiet key: a compare-and-set takes two reads and one create, a head three reads, a scan of new versions two.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from strandline.errors import Determinate, Indeterminate, StoreError
from strandline.store.protocols import (
    SEGMENT_CHARS_MAX,
    SEQNO_MAX,
    Committed,
    CompareAndSet,
    Mismatch,
    ObjectStore,
    Versioned,
    check_limit,
    check_truncation,
)
from strandline.store.seal import Kind, seal, unseal

T = TypeVar("T")
Outcome: TypeAlias = "Committed | Mismatch | StoreError"

ROOT: Final = "consensus"
HINT_EVERY: Final = 16
"""The hint is written once in this many versions, so a fresh reader reads at most this many objects."""
WINDOW_MAX: Final = 16
"""The most versions that a reader requests at once, after it has found the versions before them."""
RESTARTS_MAX: Final = 100
"""How often a reader starts again because versions were truncated during its read."""
SEQNO_DIGITS: Final = len(str(SEQNO_MAX))
END: Final = "="
"""The last segment of a key's path.  No key contains it, so the objects of two keys never mix."""
assert HINT_EVERY >= 1

_SEQNO: Final = struct.Struct("<Q")
_PLAIN: Final = re.compile(r"[a-z0-9-]")
_ESCAPED: Final = re.compile(r"_([0-9a-f]{2})")


class Outcomes(Protocol):
    """Runs several calls, concurrently if the implementation can, and returns their results."""

    async def __call__(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run the calls."""
        ...


async def one_by_one(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls one after another; if one raises, start no later one."""
    try:
        return [await call for call in calls]
    finally:
        for call in calls:
            call.close()


class ObjectConsensus:
    """A `Consensus` in the objects below ``root``."""

    def __init__(self, objects: ObjectStore, root: str = ROOT, together: Outcomes = one_by_one) -> None:
        self._objects = objects
        self._root = root
        self._together = together
        # By path: the newest seqno that this process has read or written, and the first version, which never changes.
        self._seen: dict[str, int] = {}
        self._firsts: dict[str, Versioned] = {}

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        path = self._path(key)
        newest = await self._somewhere(path)
        for _ in range(RESTARTS_MAX):
            if newest is None and (newest := await self._oldest(path)) is None:
                return None
            newest = [newest, *await self._consecutive(path, newest.seqno + 1, SEQNO_MAX)][-1]
            if await self._marker(path) <= newest.seqno + 1:
                self._saw(path, newest.seqno)
                return newest
            newest = None  # the versions that we followed were deleted meanwhile, or are garbage: start at the marker
        raise Determinate(f"key {key!r}: versions were truncated {RESTARTS_MAX} times while they were read")

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        path, new = self._path(request.key), request.new
        if request.expected is None:
            if not await self._objects.create(_first(path), _sealed(_first(path), new)):
                return Mismatch()
            self._saw(path, new.seqno)
            return Committed()
        if new.seqno <= await self._marker(path):
            return Mismatch()
        if self._seen.get(path) != request.expected and not await self._is_version(path, request.expected):
            return Mismatch()
        name = _later(path, new.seqno)
        if not await self._objects.create(name, _sealed(name, new)):
            return Mismatch()
        try:
            marker = await self._marker(path)
        except StoreError as error:
            raise Indeterminate(f"{name} was stored, but may not be a version: {error}") from error
        if new.seqno < marker:
            raise Indeterminate(f"{name} was stored while the versions before {marker} were truncated")
        self._saw(path, new.seqno)
        if new.seqno % HINT_EVERY == 0:
            with contextlib.suppress(StoreError):  # the version is committed in any case
                await self._objects.set(_hint(path), _sealed(_hint(path), Versioned(new.seqno, b"")))
        return Committed()

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone.  An error stands for all requests: any of them may have happened."""
        outcomes = await self._together([self._outcome(request) for request in requests])
        errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
        if not errors:
            return [outcome for outcome in outcomes if not isinstance(outcome, StoreError)]
        if Committed() not in outcomes and all(isinstance(error, Determinate) for error in errors):
            raise errors[0]
        raise Indeterminate(f"of {len(requests)} requests {len(errors)} failed; the first: {errors[0]}") from errors[0]

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        check_limit(key, limit)
        path = self._path(key)
        first = await self._get_first(path)
        if first is None or start > SEQNO_MAX:
            return []
        lower = max(start, first.seqno)
        for _ in range(RESTARTS_MAX):
            versions = [first] if lower == first.seqno and limit else []
            versions += await self._consecutive(path, lower + len(versions), limit - len(versions))
            marker = await self._marker(path)
            if marker <= lower:
                return versions
            lower = marker  # versions read below it may be garbage
        raise Determinate(f"key {key!r}: versions were truncated {RESTARTS_MAX} times while they were read")

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many.

        Once the marker is durable the versions are gone, even if the deletes fail: the next truncation deletes the
        objects that a crash or an error leaves.
        """
        head = await self.head(key)
        check_truncation(key, seqno, head.seqno if head else None)
        path = self._path(key)
        first = await self._get_first(path)
        assert first is not None, "it is created before any other version, and never deleted"
        name = _truncated_below(path)
        while True:
            found = await self._objects.read(name)
            lowest = first.seqno if found is None else _unsealed(name, found.data).seqno
            if seqno <= lowest:
                break
            marker = _sealed(name, Versioned(seqno, b""))
            if found is None:
                moved = await self._objects.create(name, marker)
            else:
                moved = await self._objects.replace(name, found.tag, marker)
            if moved:
                break
        with contextlib.suppress(StoreError):
            await self._sweep(path, max(seqno, lowest))
        return max(0, seqno - lowest)

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        end = f"/{END}/first"
        names = await self._objects.list(f"{self._root}/")
        return sorted(_key(name.removeprefix(self._root).removesuffix(end)) for name in names if name.endswith(end))

    async def _outcome(self, request: CompareAndSet) -> Outcome:
        try:
            return await self.compare_and_set(request)
        except StoreError as error:
            return error

    async def _somewhere(self, path: str) -> Versioned | None:
        """Return a version near the head, which may have been truncated since; None if none is known."""
        seqno = self._seen.get(path)
        if seqno is None:
            hint = await self._objects.get(_hint(path))
            if hint is None:
                return None
            seqno = _unsealed(_hint(path), hint).seqno
        return await self._get(path, seqno)

    async def _oldest(self, path: str) -> Versioned | None:
        """Return the oldest live version, or None if the key is fresh."""
        for _ in range(RESTARTS_MAX):
            marker = await self._marker(path)
            if marker == 0:
                return await self._get_first(path)
            if (found := await self._get(path, marker)) is not None:
                return found
        raise Determinate(f"{path}: the oldest version was truncated {RESTARTS_MAX} times while it was read")

    async def _consecutive(self, path: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` later versions, from ``start`` up to the first absent one."""
        versions: list[Versioned] = []
        window = 1
        while len(versions) < limit:
            seqnos = range(start + len(versions), start + min(len(versions) + window, limit))
            for version in await self._together([self._get(path, seqno) for seqno in seqnos]):
                if version is None:
                    return versions
                versions.append(version)
            window = min(2 * window, WINDOW_MAX)
        return versions

    async def _is_version(self, path: str, seqno: int) -> bool:
        if await self._get(path, seqno) is not None:
            return True
        first = await self._get_first(path)
        return first is not None and first.seqno == seqno

    async def _sweep(self, path: str, below: int) -> None:
        start = f"{path}/v/"
        for name in await self._objects.list(start):
            if int(name.removeprefix(start)) < below:
                await self._objects.delete(name)

    async def _marker(self, path: str) -> int:
        """Return the seqno below which versions are truncated; 0 if there was no truncation."""
        name = _truncated_below(path)
        data = await self._objects.get(name)
        return 0 if data is None else _unsealed(name, data).seqno

    async def _get_first(self, path: str) -> Versioned | None:
        if path not in self._firsts:
            data = await self._objects.get(_first(path))
            if data is None:
                return None
            self._firsts[path] = _unsealed(_first(path), data)
        return self._firsts[path]

    async def _get(self, path: str, seqno: int) -> Versioned | None:
        """Return version ``seqno``, which must not be the first, or None if it is absent."""
        if seqno > SEQNO_MAX:
            return None
        data = await self._objects.get(_later(path, seqno))
        return None if data is None else _unsealed(_later(path, seqno), data)

    def _saw(self, path: str, seqno: int) -> None:
        self._seen[path] = max(seqno, self._seen.get(path, seqno))

    def _path(self, key: str) -> str:
        """Return the path of the objects of ``key``; different keys have different paths on any store."""
        escaped = "".join(c if _PLAIN.fullmatch(c) else "".join(f"_{b:02x}" for b in c.encode()) for c in key)
        segments = [escaped[at : at + SEGMENT_CHARS_MAX] for at in range(0, len(escaped), SEGMENT_CHARS_MAX)]
        return "/".join([self._root, *segments, END])


def _key(path: str) -> str:
    """Return the key whose escaped form ``path`` is.

    >>> _key("/shards_2fs-1"), _key("/_d0/_ba")
    ('shards/s-1', 'к')
    """
    text = path.replace("/", "")
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1").decode()


def _first(path: str) -> str:
    return f"{path}/first"


def _later(path: str, seqno: int) -> str:
    return f"{path}/v/{seqno:0{SEQNO_DIGITS}}"


def _truncated_below(path: str) -> str:
    return f"{path}/truncated_below"


def _hint(path: str) -> str:
    return f"{path}/hint"


def _sealed(name: str, version: Versioned) -> bytes:
    return seal(Kind.VERSION, name, _SEQNO.pack(version.seqno) + version.data)


def _unsealed(name: str, data: bytes) -> Versioned:
    body = unseal(Kind.VERSION, name, data)
    (seqno,) = _SEQNO.unpack_from(body)
    return Versioned(seqno, body[_SEQNO.size :])
