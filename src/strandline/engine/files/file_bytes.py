"""The bytes of a source's files, as the driver reads them: on this machine, or in an object store.

A path is one of this machine, or ``s3a://bucket/key`` as Spark has it.  Which options reach a bucket is known for all
of this process: Spark has one configuration for a bucket.

Source: design page "sources" (files: local and object store).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import obstore
import pyarrow as pa
from obstore import exceptions

from strandline.errors import ConfigError, Unavailable, first_line
from strandline.store.blob_kinds.objects import READ_RETRIES_MAX, ObjectLocation
from strandline.store.secret import Secret

S3A: Final = "s3a://"
_FAILURES: Final = (exceptions.BaseError, FileNotFoundError, PermissionError)


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
        bucket, _, key = path.removeprefix(S3A).partition("/")
        try:
            return pa.PythonFile(obstore.open_reader(self._known[bucket][1], key), mode="r")
        except _FAILURES as error:
            raise Unavailable(f"object {path} cannot be read: {first_line(error)}") from error

    def stream(self, path: str) -> pa.NativeFile:
        """Return a file's text as a stream, decompressed as its name says."""
        if not path.startswith(S3A):
            return pa.input_stream(path, compression="detect")
        codec = {"gz": "gzip", "bz2": "bz2"}.get(path.rpartition(".")[2])
        opened = self.open(path)
        return opened if codec is None else pa.CompressedInputStream(opened, codec)


def _bucket(path: str) -> str:
    return path.removeprefix(S3A).partition("/")[0]
