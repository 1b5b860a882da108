"""A cache of objects in local files, in front of a Blob that is far away.

Keys are never reused, so what was got once under a key is what would be got again: an entry is never stale.  It may be
*damaged* (a disk, a hand), so each entry is sealed with its key and checked whenever it is used; one that fails its
check is a miss and is thrown away.  The cache can only ever be slow, never wrong, and a cache that fails is no cache.

The budget is in bytes, least recently used go first.  Any number of processes may share a directory: each entry is a
file that appears whole, and to delete one takes nothing from whoever has it open.  Each process looks at the directory
after it has added a `LOOKS_PER_BUDGET`-th of the budget, so together they exceed the budget by no more than that each.

The directory may lie where every user of the machine can write (``/tmp``), under a name that all can guess.  So it must
be a directory itself and no link to one, of this user, and closed to all others; from then on it is used by its open
descriptor alone, whatever is put under its name.  Inside it no link is followed, and nothing is read or deleted but
regular files of this user under names that the cache gives.

Warning: what another machine deleted may still be got here, as it was.  Ask the Blob itself where absence matters
(`list` and `delete` always do).

Source: design page "persist" (keys are never reused).
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

_OURS: Final = re.compile(r"[0-9a-f]{40}\.entry(?:~[0-9]+)?")
"""Names of entries, and of those that are being written or that a crash left so."""
_CLOSED: Final = 0o700
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_ENTRY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Of what is no regular file, a pipe for example, opening must not wait."""
_MAKE_ENTRY: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class CacheCounts:
    """What a process has seen of its cache since it was opened."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    evicted: int = 0


class FileCache:
    """Sealed entries in the files of ``root``, which is made if it is not there.  Its calls block.  `close` it.

    Raises `ConfigError` if ``root`` cannot be made, is a link, is another user's, or others than this user may write
    it.
    """

    def __init__(self, root: Path, budget_bytes: int) -> None:
        assert budget_bytes > 0, "a cache without a budget is no cache: leave it out"
        self._directory = _private(root)
        self._closing = weakref.finalize(self, os.close, self._directory)
        self._budget = budget_bytes
        self._lock = threading.Lock()
        self._unseen = budget_bytes  # bytes added since the last look; at first anything may be there
        self.counts = CacheCounts()

    def close(self) -> None:
        """Let go of the directory.  From then on nothing is found and nothing kept."""
        self._closing()
        self._directory = -1

    def get(self, key: str) -> bytes | None:
        """Return the object that was put under ``key``, or None: it is not here, or damaged."""
        try:
            data = unseal(Kind.CACHED, key, self._read(_name(key)))
        except OSError:
            self.counts.misses += 1
            return None
        except CorruptionError:
            self.counts.misses += 1
            self.counts.damaged += 1
            self.drop(key)
            return None
        self.counts.hits += 1
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep an object, and evict others if the budget is spent.  Failing is not keeping."""
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

    def drop(self, key: str) -> None:
        """Forget what is kept under ``key``, if anything is."""
        with contextlib.suppress(OSError):
            os.unlink(_name(key), dir_fd=self._directory)

    def _read(self, name: str) -> bytes:
        """Return the bytes of an entry, which counts as used now.  Raises `OSError` for whatever is no entry."""
        with open(name, "rb", opener=self._opener(_OPEN_ENTRY)) as file:
            if not _is_ours(os.fstat(file.fileno())):
                raise FileNotFoundError(errno.ENOENT, "no entry of ours", name)
            sealed = file.read()
            os.utime(file.fileno())
        return sealed

    def _write(self, name: str, sealed: bytes) -> None:
        """Make the entry appear whole.  No fsync: what a power cut leaves of it fails its check."""
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
        """Make a file of a name that no other writer uses."""
        for number in itertools.count():
            temporary = f"{name}~{number}"
            with contextlib.suppress(FileExistsError):
                return temporary, open(temporary, "wb", opener=self._opener(_MAKE_ENTRY))
        raise AssertionError("numbers do not end")

    def _opener(self, flags: int) -> Callable[[str, int], int]:
        return lambda name, _: os.open(name, flags, 0o600, dir_fd=self._directory)

    def _evict(self) -> None:
        """Delete the least recently used entries, also what a crash left half written, until the rest fits."""
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process evicts too
                    told = entry.stat(follow_symlinks=False)
                    if _OURS.fullmatch(entry.name) and _is_ours(told):
                        found.append((told.st_mtime_ns, entry.name, told.st_size))
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
    """Return a descriptor of the directory ``root``, which is this user's alone.  Raises as `FileCache`."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=_CLOSED)
        directory = os.open(root, _OPEN_DIRECTORY)
    except OSError as error:
        if root.is_symlink():
            raise ConfigError(f"the cache's directory {str(root)!r} is a link: say where it leads instead") from error
        raise ConfigError(f"the cache's directory {str(root)!r} cannot be made: {error.strerror}") from error
    told = os.fstat(directory)
    if told.st_uid != os.getuid():
        os.close(directory)
        raise ConfigError(f"the cache's directory {str(root)!r} is another user's: say another one as `cache`")
    if told.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(directory)
        raise ConfigError(f"the cache's directory {str(root)!r} can be written by others: they could put rows into it")
    os.fchmod(directory, _CLOSED)  # others could read rows
    return directory


def _name(key: str) -> str:
    return f"{blake2b(key.encode(), digest_size=20).hexdigest()}.entry"


def _is_ours(told: os.stat_result) -> bool:
    return stat.S_ISREG(told.st_mode) and told.st_uid == os.getuid()


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
