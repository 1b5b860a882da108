"""Where the files of tables are: a directory, or a prefix of an object store.

Beside the calls of `Place` there is one that makes a commit: `publish` stores an object under a name that no object
has, whole or not at all.  In a directory that is a link to a file that is complete; in an object store a conditional
put.  It is never repeated here: after a lost answer the next look shows whether it happened.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import obstore
from obstore import exceptions

from strandline.errors import Unavailable, first_line
from strandline.materialize.drivers.staged.place import LocalPlace, Place
from strandline.store.blob_kinds.objects import READ_RETRIES_MAX, ObjectLocation
from strandline.store.clock import Ids

PAGE: Final = 1_000
_ABSENT: Final = (FileNotFoundError, exceptions.NotFoundError)
_FAILURES: Final = (exceptions.BaseError, OSError)


class Objects(Place, Protocol):
    """A `Place` in which commits can be made."""

    def publish(self, name: str, data: bytes) -> bool:
        """Store an object iff there is none of this name; return whether it was stored.

        Raises `Unavailable` if that is not known.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        ...


class LocalObjects(LocalPlace):
    """A directory of this machine."""

    def __init__(self, root: Path, ids: Ids) -> None:
        super().__init__(root)
        self._at = root
        self._ids = ids

    def publish(self, name: str, data: bytes) -> bool:
        """See `Objects.publish`."""
        draft = f"{name.rpartition('/')[0]}/.{self._ids.fresh('draft')}"
        with self.create(draft) as sink:
            sink.write(data)
        try:
            os.link(self._at / draft, self._at / name)
        except FileExistsError:
            return False
        finally:
            (self._at / draft).unlink()
        descriptor = os.open((self._at / name).parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def get(self, name: str) -> bytes | None:
        """See `Objects.get`."""
        with suppress(FileNotFoundError):
            return (self._at / name).read_bytes()
        return None


class StoreObjects:
    """A prefix of an object store."""

    def __init__(self, location: ObjectLocation) -> None:
        self._url = location.url
        self._writes = location.open(retries=0)
        self._reads = location.open(retries=READ_RETRIES_MAX)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """See `Place.create`."""
        sink = io.BytesIO()  # a piece is small enough, and so nothing is there of one that failed
        yield sink
        with self._asked(name):
            obstore.put(self._reads, name, sink.getvalue())

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """See `Place.open`."""
        with self._asked(name), _Reading(obstore.open_reader(self._reads, name)) as source:
            yield source

    def size(self, name: str) -> int:
        """See `Place.size`."""
        with self._asked(name):
            return int(obstore.head(self._reads, name)["size"])

    def remove(self, name: str) -> None:
        """See `Place.remove`."""
        with suppress(FileNotFoundError), self._asked(name):
            obstore.delete(self._reads, name)

    def below(self, directory: str) -> list[str]:
        """See `Place.below`."""
        with self._asked(directory):
            pages = obstore.list(self._reads, prefix=directory, chunk_size=PAGE)
            return sorted(entry["path"] for page in pages for entry in page)

    def publish(self, name: str, data: bytes) -> bool:
        """See `Objects.publish`."""
        with self._asked(name):
            try:
                obstore.put(self._writes, name, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                return False
        return True

    def get(self, name: str) -> bytes | None:
        """See `Objects.get`."""
        with suppress(FileNotFoundError), self._asked(name):
            return bytes(obstore.get(self._reads, name).bytes())
        return None

    @contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        """Say what a failure means: that something is not there is a `FileNotFoundError`."""
        try:
            yield
        except _ABSENT as error:
            raise FileNotFoundError(name) from error
        except _FAILURES as error:
            raise Unavailable(f"{self._url}: {name!r} cannot be read or written: {first_line(error)}") from error


class _Reading(io.RawIOBase):
    """An object as a file of Python's: only what is asked for is read."""

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def readinto(self, buffer: Any) -> int:
        found = bytes(self._reader.read(len(buffer)))
        buffer[: len(found)] = found
        return len(found)
