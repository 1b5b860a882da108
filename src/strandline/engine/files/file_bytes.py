"""The bytes of a source's files, as the driver reads them: on this machine, or in an object store.

A path is one of this machine, or ``s3a://bucket/key`` as Spark has it.  Which options reach a bucket is known for all
of this process: Spark has one configuration for a bucket.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from strandline.errors import ConfigError, Unavailable, first_line
from strandline.store.blob_kinds.object_location import READ_RETRIES_MAX, ObjectLocation
from strandline.store.secret import Secret

S3A: Final = "s3a://"


class FileBytes:
    """Opens files for reading."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[str, str | Secret], Any]] = {}  # by bucket: its options, its client

    def know(self, location: ObjectLocation) -> bool:
        """Learn how a bucket is reached; return whether that is new.

        Raises `ConfigError` if this process reaches it in another way.
        """
        bucket = _bucket(location.url.replace("s3://", S3A, 1))
        if bucket in self._known:
            if self._known[bucket][0] != location.options:
                raise ConfigError(f"another source reaches bucket {bucket} with other options; let both have the same")
            return False
        whole = ObjectLocation(f"s3://{bucket}", location.options)
        self._known[bucket] = (location.options, whole.open(retries=READ_RETRIES_MAX))
        return True

    def open(self, path: str) -> pa.NativeFile:
        """Return a file that can be read at any place.  Raises `OSError`, or `Unavailable`: a store does not answer."""
        if not path.startswith(S3A):
            return pa.OSFile(path)
        import obstore
        from obstore import exceptions

        bucket, _, key = path.removeprefix(S3A).partition("/")
        try:
            reader = obstore.open_reader(self._known[bucket][1], key)
        except (exceptions.BaseError, FileNotFoundError, PermissionError) as error:
            raise _unread(path, error) from error
        return pa.PythonFile(_Opened(path, reader, exceptions.BaseError), mode="r")

    def stream(self, path: str) -> pa.NativeFile:
        """Return a file's text as a stream, decompressed as its name says."""
        if not path.startswith(S3A):
            return pa.input_stream(path, compression="detect")
        codec = {"gz": "gzip", "bz2": "bz2"}.get(path.rpartition(".")[2])
        opened = self.open(path)
        return opened if codec is None else pa.CompressedInputStream(opened, codec)


class _Opened(io.RawIOBase):
    """An object that is read, as a file: pyarrow asks whether it is closed, and readers of obstore do not say so.

    ``failure``: what the reader raises if the store does not answer; then `Unavailable` is raised.
    """

    def __init__(self, path: str, reader: Any, failure: type[Exception]) -> None:
        super().__init__()
        self._path = path
        self._reader = reader
        self._failures = (failure, FileNotFoundError, PermissionError)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that any place of it can be read."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; all that are left, without a size."""
        try:
            return bytes(self._reader.read(None if size is None or size < 0 else size))
        except self._failures as error:
            raise _unread(self._path, error) from error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, and return it."""
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        """Return the place of the next byte."""
        return int(self._reader.tell())


def _unread(path: str, error: Exception) -> Unavailable:
    return Unavailable(f"object {path} cannot be read: {first_line(error)}")


def _bucket(path: str) -> str:
    return path.removeprefix(S3A).partition("/")[0]
