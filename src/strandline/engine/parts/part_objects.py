"""Parts in an object store: written by Spark through S3A, checked through the store's own client.

What Spark writes here is never renamed: S3A's magic committer uploads each part below the name that it will have, and
the job's commit makes the uploads visible, of exactly one attempt of each task.  An upload that is complete is durable.
Nothing is read from a listing but names: the counts that Spark observed must be in the footers that are found there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore import exceptions

from strandline.engine.parts import part_store
from strandline.engine.parts.part_store import Described
from strandline.errors import CorruptionError, Indeterminate, Unavailable, first_line
from strandline.persist.shard.batch import BlobPart
from strandline.store.blob_kinds.object_location import READ_RETRIES_MAX, ObjectLocation

REQUESTS_MAX: Final = 16
"""At a time, of one read."""
_ABSENT: Final = (FileNotFoundError, exceptions.NotFoundError)


class ObjectParts:
    """`Parts` below ``location`` (the location's Blob is there too), which Spark reaches as ``root``."""

    def __init__(self, location: ObjectLocation, root: str) -> None:
        self._store: Any = location.open(retries=READ_RETRIES_MAX)
        self._root = root

    def uri(self, key: str) -> str:
        """Return where Spark reads and writes ``key``."""
        return f"{self._root}/{key}"

    def describe(self, prefix: str) -> list[Described]:
        """Return the parts below ``prefix`` in key order; those without rows are removed."""
        directory = prefix.rstrip("/")
        try:
            sizes = {each["path"]: each["size"] for page in obstore.list(self._store, directory) for each in page}
            found = []
            for key, size in sorted(sizes.items()):
                if size == 0:  # Hadoop's sign for a directory
                    continue
                described = part_store.describe(key, size, partial(self._read, key), sidecar="")
                if described is None:
                    obstore.delete(self._store, key)
                else:
                    found.append(described)
        except (exceptions.BaseError, OSError) as error:
            raise Indeterminate(f"parts below {prefix} may be there but cannot be read: {first_line(error)}") from error
        return found

    def check(self, part: BlobPart) -> Described:
        """Return what the part's footer says; `CorruptionError` unless it is the part that was appended."""
        try:
            size = int(obstore.head(self._store, part.key)["size"])
            return part_store.check(part, size, partial(self._read, part.key))
        except _ABSENT:
            return part_store.check(part, None, partial(self._read, part.key))
        except (exceptions.BaseError, OSError) as error:
            raise Unavailable(f"part {part.key} cannot be read: {first_line(error)}") from error

    def check_all(self, parts: Sequence[BlobPart]) -> list[Described]:
        """Check each, several at a time: a check is two requests, and their time is all waiting."""
        if len(parts) < 2:
            return [self.check(part) for part in parts]
        with ThreadPoolExecutor(min(len(parts), REQUESTS_MAX), thread_name_prefix="strandline-check") as pool:
            return list(pool.map(self.check, parts))

    def load(self, part: BlobPart) -> pa.Table:
        """Return all of a part that was checked; `CorruptionError` for a damaged page."""
        try:
            data = bytes(obstore.get(self._store, part.key).bytes())
        except (exceptions.BaseError, OSError) as error:
            raise Unavailable(f"part {part.key} cannot be read: {first_line(error)}") from error
        return part_store.load(part, data)

    def open(self, part: BlobPart) -> pq.ParquetFile:
        """Return a part to be read in pieces, as `part_store.opened` says; `CorruptionError` if it is missing."""
        try:
            data = bytes(obstore.get(self._store, part.key).bytes())
        except _ABSENT:
            raise CorruptionError(f"part {part.key} is missing; a part of {part.size} bytes was expected") from None
        except (exceptions.BaseError, OSError) as error:
            raise Unavailable(f"part {part.key} cannot be read: {first_line(error)}") from error
        return part_store.opened(part, data)

    def write(self, key: str, data: bytes) -> Described:
        """Store a Parquet file as ``key``, durably, and describe it."""
        try:
            obstore.put(self._store, key, data)
        except (exceptions.BaseError, OSError) as error:
            raise Indeterminate(f"part {key} may not have been stored: {first_line(error)}") from error
        described = part_store.describe(key, len(data), lambda start, length: data[start : start + length], sidecar="")
        assert described is not None, "a part without rows is never written"
        return described

    def put_aside(self, key: str, data: bytes) -> None:
        """See `Parts.put_aside`."""
        try:
            obstore.put(self._store, key, data)
        except (exceptions.BaseError, OSError) as error:
            raise Unavailable(f"rows cannot be put aside as {key}: {first_line(error)}") from error

    def delete(self, part: BlobPart) -> None:
        """Remove a part.  Idempotent."""
        try:
            obstore.delete(self._store, part.key)
        except _ABSENT:
            return
        except (exceptions.BaseError, OSError) as error:
            raise Indeterminate(f"part {part.key} may still be there: {first_line(error)}") from error

    def delete_prefix(self, prefix: str) -> None:
        """Remove whatever a failed job left below a prefix that nothing names, if the store answers.  Idempotent."""
        with contextlib.suppress(exceptions.BaseError, OSError):
            for page in obstore.list(self._store, prefix.rstrip("/")):
                obstore.delete(self._store, [each["path"] for each in page])

    def _read(self, key: str, start: int, length: int) -> bytes:
        return bytes(obstore.get_range(self._store, key, start=start, length=length))
