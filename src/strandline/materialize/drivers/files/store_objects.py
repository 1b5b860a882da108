"""A prefix of an object store, where the files of tables are; see `objects.py`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final

import obstore
from obstore import exceptions

from strandline.errors import Unavailable, first_line
from strandline.store.blob_kinds.object_location import READ_RETRIES_MAX, ObjectLocation

PAGE: Final = 1_000
_ABSENT: Final = (FileNotFoundError, exceptions.NotFoundError)
_FAILURES: Final = (exceptions.BaseError, OSError)


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
