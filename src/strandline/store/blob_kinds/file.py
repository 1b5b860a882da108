"""Blob in a directory of local files: a key is the path of a file below the root.

Durability needs the right order.  To a file system a file's bytes, its name, and the name of each directory above it
are different things, and each needs its own fsync:

1. write the bytes into a temporary file in the target's directory, and fsync the file (else the name may survive a
   power cut and the bytes not);
2. rename it to the target (readers see all of it or nothing), and fsync the directory (else the name may be lost);
3. fsync every directory from there up to the root.  This includes old directories, because another process may have
   created one and not yet fsynced it.  The fsync of a directory that has not changed is cheap.

A temporary file's name contains ``~``, which no key may contain, so a file that a crash leaves is never mistaken for an
object.  `FileBlob.sweep` removes such files when they are a day old; opening a location calls it.

Threads: a call that ends in an fsync takes milliseconds on a busy disk, and a listing walks a tree, so these calls run
in a thread.  ``get`` runs on the event loop: objects read through Blob have a few KiB and are mostly in the page cache,
and a thread switch costs more than the read.

Warning: no key may be the directory of another key (``a`` and ``a/b``): that raises `InvalidUsage`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from strandline.errors import ConfigError, Determinate, Indeterminate, InvalidUsage, is_full
from strandline.store.protocols import SEGMENT_CHARS_MAX, check_key, check_prefix, is_key

T = TypeVar("T")

NAME_CHARS_MAX: Final = 255
TEMPORARY_MARK: Final = "~"
TEMPORARY_SUFFIX_CHARS_MAX: Final = 20
"""The mark and a counter."""
assert SEGMENT_CHARS_MAX + TEMPORARY_SUFFIX_CHARS_MAX <= NAME_CHARS_MAX

LEFTOVER_GRACE_MS: Final = 24 * 3_600_000
"""A temporary file that has not been written to for this long has lost its writer.

If its writer was only suspended, the writer finds the file gone and raises `Indeterminate`; no wrong bytes are stored.
"""
DIRECTORY_RACES_MAX: Final = 100
"""How often a set recreates its directory after a concurrent delete removed it as empty."""


class FileBlob:
    """A `Blob` in the files below ``root``, which is created if missing, unless it must be ``existing``.

    ``fsync=False`` gives up durability (never atomicity), for a location that need not survive a crash of the machine.

    Raises:
        ConfigError: ``root`` cannot be created, is not a directory, or does not exist although it must.
    """

    def __init__(self, root: Path, fsync: bool = True, *, existing: bool = False) -> None:
        self._root = root.absolute()
        self._fsync = fsync
        if existing and not self._root.is_dir():
            raise ConfigError(f"there is no directory {self._root}: nothing was stored there yet")
        try:
            missing = list(itertools.takewhile(lambda path: not path.exists(), (self._root, *self._root.parents)))
            self._root.mkdir(parents=True, exist_ok=True)
            for directory in missing:
                self._sync_path(directory.parent)
        except OSError as error:
            raise ConfigError(f"{self._root} cannot hold a location's objects: {error}") from error

    def path(self, key: str) -> Path:
        """Return the path of the file for ``key``, which may not exist: Spark reads and writes files itself."""
        check_key(key)
        return self._root / key

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        path = self.path(key)
        try:
            return path.read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except OSError as error:
            raise Determinate(f"blob {key!r} cannot be read: {_reason(error, path)}") from error

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``: when this returns, it survives a power cut.

        Raises:
            Determinate: nothing was stored, because the disk is full or a quota used up, for example.
            Indeterminate: the rename, or an fsync after it, failed: the object may be there, or be gone after a crash.
                A rename for which there is no space has not happened.
        """
        path = self.path(key)
        await self._blocking(lambda: self._set(path, key, data))

    async def delete(self, key: str) -> bool:
        """Remove ``key``, durably, because the caller may forget the key next; return whether it existed.

        A directory that is empty after this is removed too.
        """
        path = self.path(key)
        return await self._blocking(lambda: self._delete(path, key))

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        check_prefix(prefix)
        return await asyncio.to_thread(lambda: sorted(self._keys(prefix)))

    def sweep(self, now_ms: int) -> int:
        """Remove the files that crashed writers left; return how many.  ``now_ms``: the file system's clock."""
        swept = 0
        for directory, _, names in os.walk(self._root):
            for name in sorted(names):
                if TEMPORARY_MARK in name:
                    with contextlib.suppress(OSError):  # another process removed it, or the next sweep retries
                        leftover = Path(directory, name)
                        if leftover.stat().st_mtime_ns // 1_000_000 + LEFTOVER_GRACE_MS < now_ms:
                            leftover.unlink()
                            swept += 1
        return swept

    async def _blocking(self, call: Callable[[], T]) -> T:
        """Run a call that ends in an fsync in a thread; without fsync, run it directly."""
        return await asyncio.to_thread(call) if self._fsync else call()

    def _set(self, path: Path, key: str, data: bytes) -> None:
        try:
            temporary = self._write_temporary(path, data)
        except NotADirectoryError as error:
            raise InvalidUsage(f"blob {key!r} lies below another object: {error}") from error
        except OSError as error:
            raise Determinate(f"blob {key!r} was not stored: {_reason(error, path)}") from error
        try:
            os.replace(temporary, path)
        except IsADirectoryError as error:
            temporary.unlink(missing_ok=True)
            raise InvalidUsage(f"blob {key!r} is a directory of other objects: {error}") from error
        except OSError as error:
            if not is_full(error):
                raise Indeterminate(f"blob {key!r} may not have been stored: {_reason(error, path)}") from error
            with contextlib.suppress(OSError):  # a later sweep removes it
                temporary.unlink()
            raise Determinate(f"blob {key!r} was not stored: {_reason(error, path)}") from error
        try:
            self._sync_upwards(path.parent)
        except OSError as error:
            raise Indeterminate(f"blob {key!r} may not have been stored: {_reason(error, path)}") from error

    def _write_temporary(self, path: Path, data: bytes) -> Path:
        """Write and fsync a new file beside ``path``; remove it on failure."""
        descriptor, temporary = self._create_temporary(path)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if self._fsync:
                    os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _create_temporary(self, path: Path) -> tuple[int, Path]:
        """Create a file under an unused name; creation is exclusive, so concurrent writers get different names."""
        number = races = 0
        while True:
            temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{number}")
            try:
                return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), temporary
            except FileExistsError:
                number += 1  # it belongs to another writer, or a crash left it
            except FileNotFoundError:
                races += 1
                if races > DIRECTORY_RACES_MAX:
                    raise
                with contextlib.suppress(FileExistsError):  # other processes create and remove it: try again
                    path.parent.mkdir(parents=True, exist_ok=True)

    def _delete(self, path: Path, key: str) -> bool:
        if path.is_dir():
            return False
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if is_full(error):  # a file system that writes a copy of what it changes needs space for it
                raise Determinate(f"blob {key!r} was not deleted: {_reason(error, path)}") from error
            raise Indeterminate(f"blob {key!r} may not have been deleted: {_reason(error, path)}") from error
        try:
            self._sync_deepest(path.parent)
        except OSError as error:
            raise Indeterminate(f"blob {key!r} may come back after a crash: {_reason(error, path)}") from error
        if path.parent != self._root:
            with contextlib.suppress(OSError):  # usually it is not empty; and an empty directory does no harm
                path.parent.rmdir()
        return True

    def _keys(self, prefix: str) -> Iterator[str]:
        """Walk the deepest directory that holds every key with this prefix."""
        top = self._root / prefix.rpartition("/")[0]
        for directory, _, names in os.walk(top):
            relative = Path(directory).relative_to(self._root).as_posix()
            for name in names:
                key = name if relative == "." else f"{relative}/{name}"
                if key.startswith(prefix) and is_key(key):
                    yield key

    def _sync_upwards(self, directory: Path) -> None:
        for ancestor in (directory, *directory.parents):
            self._sync_path(ancestor)
            if ancestor == self._root:
                return

    def _sync_deepest(self, directory: Path) -> None:
        """Fsync the directory, or the deepest one above it that a concurrent delete has not removed."""
        for ancestor in (directory, *directory.parents):
            with contextlib.suppress(FileNotFoundError):
                self._sync_path(ancestor)
                return

    def _sync_path(self, path: Path) -> None:
        """Fsync a file or a directory that is not open."""
        if not self._fsync:
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reason(error: OSError, path: Path) -> str:
    """Return the operating system's message with the file's path, which a failed write does not name itself."""
    return f"{error.strerror or error}: {error.filename or path}"
