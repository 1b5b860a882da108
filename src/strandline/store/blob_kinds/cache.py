"""A cache of objects in local files, in front of a remote Blob.

Keys are never reused, so an entry is never stale.  It may be *damaged* (by a disk, or by a person), so each entry is
sealed with its key and checked at every use; an entry that fails its check is a miss and is deleted.  So the cache can
be slow but never wrong, and a cache that fails acts like no cache.

The budget is in bytes, and the least recently used entries are evicted first.  Any number of processes may share a
directory: each entry is a file that appears whole, and deleting it does not affect a process that has it open.  Each
process checks the directory after it has added a `LOOKS_PER_BUDGET`-th of the budget, so each exceeds the budget by no
more than that.

The directory may be in a place where every user of the machine can write (``/tmp``), under a name that other users can
guess.  So it must be a real directory and no link, belong to this user, and be closed to all others.  From then on the
cache uses it only through its open descriptor, even if another directory takes its name.  Inside it the cache follows
no link, and reads and deletes only regular files of this user under the cache's own names.

Warning: the cache may still return an object that another machine has deleted.  Ask the Blob itself if absence matters
(`list` and `delete` always do).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import re
import stat
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

from strandline.errors import ConfigError, CorruptionError
from strandline.store.protocols import Blob, check_key
from strandline.store.seal import Kind, seal, unseal

LOOKS_PER_BUDGET: Final = 8
ENTRIES_PER_BUDGET_MIN: Final = 4
"""An object larger than this share of the budget is not kept: it would evict everything else."""
KEPT_AFTER_EVICTION: Final = (7, 8)
"""Each eviction frees a little more than needed, so that evictions are rare."""
assert KEPT_AFTER_EVICTION[0] < KEPT_AFTER_EVICTION[1]
assert 1 < ENTRIES_PER_BUDGET_MIN <= LOOKS_PER_BUDGET

_OURS: Final = re.compile(r"[0-9a-f]{40}\.entry(?:~[0-9]+)?")
"""The names of entries, and of temporary files that are being written or that a crash left."""
_CLOSED: Final = 0o700
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_ENTRY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""`O_NONBLOCK`, because opening something that is not a regular file, such as a pipe, must not wait."""
_MAKE_ENTRY: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class CacheCounts:
    """Counters of one process's cache since it was opened."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    evicted: int = 0


class FileCache:
    """Sealed entries in the files of ``root``, which is created if missing.  Its calls block.  `close` it.

    Raises `ConfigError` if ``root`` cannot be created, is a link, belongs to another user, or is writable by other
    users.
    """

    def __init__(self, root: Path, budget_bytes: int) -> None:
        assert budget_bytes > 0, "a cache without a budget is no cache: leave it out"
        self._directory = _private(root)
        self._closing = weakref.finalize(self, os.close, self._directory)
        self._budget = budget_bytes
        self._lock = threading.Lock()
        self._unseen = budget_bytes  # bytes added since the last check; at first the content is unknown
        self.counts = CacheCounts()

    def close(self) -> None:
        """Close the directory.  From then on `get` finds nothing and `put` keeps nothing."""
        self._closing()
        self._directory = -1

    def get(self, key: str) -> bytes | None:
        """Return the object that was put under ``key``; None if it is missing or damaged."""
        try:
            data = unseal(Kind.CACHED, key, self._read(_name(key)))
        except OSError:
            self.counts.misses += 1
            return None
        except CorruptionError:
            self.counts.misses += 1
            self.counts.damaged += 1
            self.delete(key)
            return None
        self.counts.hits += 1
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep an object, and evict others if the budget is spent.  On a failure the object is not kept."""
        sealed = seal(Kind.CACHED, key, data)
        if len(sealed) > self._budget // ENTRIES_PER_BUDGET_MIN:
            return
        with contextlib.suppress(OSError):
            self._write(_name(key), sealed)
            with self._lock:
                self._unseen += len(sealed)
                if self._unseen >= self._budget // LOOKS_PER_BUDGET:
                    self._evict()
                    self._unseen = 0

    def delete(self, key: str) -> None:
        """Delete the entry of ``key``, if there is one."""
        with contextlib.suppress(OSError):
            os.unlink(_name(key), dir_fd=self._directory)

    def _read(self, name: str) -> bytes:
        """Return the bytes of an entry, and mark it used now.  Raises `OSError` for anything that is no entry."""
        with open(name, "rb", opener=self._opener(_OPEN_ENTRY)) as file:
            if not _is_ours(os.fstat(file.fileno())):
                raise FileNotFoundError(errno.ENOENT, "no entry of ours", name)
            sealed = file.read()
            os.utime(file.fileno())
        return sealed

    def _write(self, name: str, sealed: bytes) -> None:
        """Write the entry atomically, without fsync: an entry that a power cut damaged fails its check."""
        temporary, file = self._temporary(name)
        try:
            with file:
                file.write(sealed)
            os.replace(temporary, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self._directory)
            raise

    def _temporary(self, name: str) -> tuple[str, BinaryIO]:
        """Create a file under a name that no other writer uses."""
        for number in itertools.count():
            temporary = f"{name}~{number}"
            with contextlib.suppress(FileExistsError):
                return temporary, open(temporary, "wb", opener=self._opener(_MAKE_ENTRY))
        raise AssertionError("numbers do not end")

    def _opener(self, flags: int) -> Callable[[str, int], int]:
        return lambda name, _: os.open(name, flags, 0o600, dir_fd=self._directory)

    def _evict(self) -> None:
        """Delete the least recently used entries and temporary files until the rest fits the budget."""
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process evicts too
                    status = entry.stat(follow_symlinks=False)
                    if _OURS.fullmatch(entry.name) and _is_ours(status):
                        found.append((status.st_mtime_ns, entry.name, status.st_size))
        total = sum(size for _, _, size in found)
        if total <= self._budget:
            return
        kept, of = KEPT_AFTER_EVICTION
        for _, name, size in sorted(found):
            if total <= self._budget * kept // of:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)
            total -= size
            self.counts.evicted += 1


def _private(root: Path) -> int:
    """Return a descriptor of the directory ``root``, which only this user can use.  Raises as `FileCache`."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=_CLOSED)
        directory = os.open(root, _OPEN_DIRECTORY)
    except OSError as error:
        if root.is_symlink():
            raise ConfigError(f"the cache's directory {str(root)!r} is a link: name its target instead") from error
        raise ConfigError(f"the cache's directory {str(root)!r} cannot be made: {error.strerror}") from error
    status = os.fstat(directory)
    if status.st_uid != os.getuid():
        os.close(directory)
        raise ConfigError(f"the cache's directory {str(root)!r} is another user's: set `cache` to another one")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(directory)
        raise ConfigError(f"the cache's directory {str(root)!r} is writable by other users: they could add rows")
    os.fchmod(directory, _CLOSED)  # other users could read rows otherwise
    return directory


def _name(key: str) -> str:
    return f"{blake2b(key.encode(), digest_size=20).hexdigest()}.entry"


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


class CachedBlob:
    """A `Blob` that gets an object from ``inner`` once, and from ``cache`` as long as that keeps it."""

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
        """Store ``data``, without caching it: most readers of new objects are other processes."""
        await self._inner.set(key, data)

    async def delete(self, key: str) -> bool:
        """Remove ``key`` from ``cache`` and ``inner``; return whether ``inner`` had it."""
        check_key(key)
        await asyncio.to_thread(self._cache.delete, key)
        return await self._inner.delete(key)

    async def list(self, prefix: str) -> list[str]:
        """Return the keys in ``inner`` that start with ``prefix``, sorted."""
        return await self._inner.list(prefix)
