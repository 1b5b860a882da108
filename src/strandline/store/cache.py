"""A cache of objects in local files, in front of a Blob that is far away.

Keys are never reused, so what was got once under a key is what would be got again: an entry is never stale.  It may be
*damaged* (a disk, a hand), so each entry is sealed with its key and checked whenever it is used; one that fails its
check is a miss and is thrown away.  The cache can only ever be slow, never wrong, and a cache that fails is no cache.

The budget is in bytes, least recently used go first.  Any number of processes may share a directory: each entry is a
file that appears whole, and to delete one takes nothing from whoever has it open.  Each process looks at the directory
after it has added a `LOOKS_PER_BUDGET`-th of the budget, so together they exceed the budget by no more than that each.

Warning: what another machine deleted may still be got here, as it was.  Ask the Blob itself where absence matters
(`list` and `delete` always do).

Source: design page "persist" (keys are never reused).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
import threading
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from strandline.errors import ConfigError, CorruptionError
from strandline.store.blob import Blob
from strandline.store.keys import check_key
from strandline.store.seal import Kind, seal, unseal

LOOKS_PER_BUDGET: Final = 8
ENTRIES_PER_BUDGET_MIN: Final = 4
"""An object larger than this share of the budget is not kept: it would drive everything else out."""
KEPT_AFTER_EVICTION: Final = (7, 8)
"""Evicting a little more than is necessary makes it rare."""
assert KEPT_AFTER_EVICTION[0] < KEPT_AFTER_EVICTION[1]
assert 1 < ENTRIES_PER_BUDGET_MIN <= LOOKS_PER_BUDGET

_TEMPORARY: Final = "~"


@dataclass(slots=True)
class CacheCounts:
    """What a process has seen of its cache since it was opened."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    evicted: int = 0


class FileCache:
    """Sealed entries in the files of ``root``, which is made if it is not there.  Its calls block.

    Raises `ConfigError` if ``root`` cannot be made, or others than this user may write it.
    """

    def __init__(self, root: Path, budget_bytes: int) -> None:
        assert budget_bytes > 0, "a cache without a budget is no cache: leave it out"
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"the cache's directory {str(root)!r} cannot be made: {error.strerror}") from error
        told = root.stat()
        if told.st_uid != os.getuid() or told.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                f"the cache's directory {str(root)!r} can be written by others: they could put rows into it"
            )
        self._root = root
        self._budget = budget_bytes
        self._lock = threading.Lock()
        self._unseen = budget_bytes  # bytes added since the last look; at first anything may be there
        self.counts = CacheCounts()

    def get(self, key: str) -> bytes | None:
        """Return the object that was put under ``key``, or None: it is not here, or damaged."""
        path = self._path(key)
        try:
            sealed = path.read_bytes()
            data = unseal(Kind.CACHED, key, sealed)
        except OSError:
            self.counts.misses += 1
            return None
        except CorruptionError:
            self.counts.misses += 1
            self.counts.damaged += 1
            self.drop(key)
            return None
        self.counts.hits += 1
        with contextlib.suppress(OSError):  # evicted meanwhile
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep an object, and evict others if the budget is spent.  Failing is not keeping."""
        sealed = seal(Kind.CACHED, key, data)
        if len(sealed) > self._budget // ENTRIES_PER_BUDGET_MIN:
            return
        with contextlib.suppress(OSError):
            self._write(self._path(key), sealed)
            with self._lock:
                self._unseen += len(sealed)
                if self._unseen >= self._budget // LOOKS_PER_BUDGET:
                    self._evict()
                    self._unseen = 0

    def drop(self, key: str) -> None:
        """Forget what is kept under ``key``, if anything is."""
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._root / blake2b(key.encode(), digest_size=20).hexdigest()

    def _write(self, path: Path, sealed: bytes) -> None:
        """Make the entry appear whole.  No fsync: what a power cut leaves of it fails its check."""
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._root)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(sealed)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _evict(self) -> None:
        """Delete the least recently used files, also what a crash left half written, until the rest fits."""
        found = []
        with os.scandir(self._root) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process evicts too
                    told = entry.stat()
                    found.append((told.st_mtime_ns, entry.name, told.st_size))
        total = sum(size for _, _, size in found)
        if total <= self._budget:
            return
        kept, of = KEPT_AFTER_EVICTION
        for _, name, size in sorted(found):
            if total <= self._budget * kept // of:
                return
            (self._root / name).unlink(missing_ok=True)
            total -= size
            self.counts.evicted += 1


class CachedBlob:
    """A `Blob` that asks ``inner`` for an object once, and then finds it in ``cache`` for as long as that has room."""

    def __init__(self, inner: Blob, cache: FileCache) -> None:
        self._inner = inner
        self._cache = cache

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        check_key(key)
        kept = await asyncio.to_thread(self._cache.get, key)
        if kept is not None:
            return kept
        data = await self._inner.get(key)
        if data is not None:
            await asyncio.to_thread(self._cache.put, key, data)
        return data

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``.  It is not kept: most of what is written is read by others."""
        await self._inner.set(key, data)

    async def delete(self, key: str) -> bool:
        """Remove ``key`` here and there; tell whether it was there."""
        check_key(key)
        await asyncio.to_thread(self._cache.drop, key)
        return await self._inner.delete(key)

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted, as ``inner`` tells."""
        return await self._inner.list(prefix)
