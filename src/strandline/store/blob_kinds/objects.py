"""Blob in an object store, through the library obstore: S3 and compatible stores, Google Cloud, Azure.

A put is atomic and durable when it returns; a conditional put is linearizable (S3: ``If-None-Match``, ``If-Match``).
This module never retries a write: a retry after a lost answer would find its own object and take it for another
writer's.  Persist retries, because it knows its own tokens.

`Determinate` means that the store refused (`_REFUSED`), or that a read failed.  Any other failure may have happened.

Warning: a client cannot check that a store really honours conditional puts, and some stores do not; run the contract
suite.

Contract suite: `strandline.testing.contracts.blob_contract`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Final, TypeVar

import obstore
from obstore import exceptions

from strandline.errors import ConfigError, Determinate, Indeterminate, Unavailable, first_line
from strandline.store.blob_kinds.object_location import READ_RETRIES_MAX, ObjectLocation
from strandline.store.protocols import Tagged, check_key, check_prefix

T = TypeVar("T")

LIST_PAGE: Final = 1000

_ABSENT: Final = (FileNotFoundError, exceptions.NotFoundError)
_REFUSED: Final = (*_ABSENT, PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
"""The store answered that it did nothing: no such bucket, or no permission."""
_OPERATORS_MOVE: Final = re.compile(r"status code: (?:30[0-9]|40[0134])\b")
"""Redirected, not allowed, or not found: retrying does not help, the operator must act."""
_FAILURES: Final = (*_REFUSED, exceptions.BaseError, OSError)


class ObjectBlob:
    """An `ObjectStore` below ``location``.

    Raises:
        ConfigError: the URL is not an object store's, or there is no such bucket, or no permission for it.
        Unavailable: it does not answer.
    """

    def __init__(self, location: ObjectLocation) -> None:
        self._writes = location.open(retries=0)
        self._reads = location.open(retries=READ_RETRIES_MAX)
        try:
            next(iter(obstore.list(self._reads, chunk_size=1)), None)
        except _FAILURES as error:
            if _OPERATORS_MOVE.search(first_line(error)):
                raise ConfigError(f"{location.url} cannot be used: {first_line(error)}") from None
            raise Unavailable(f"{location.url} does not answer: {first_line(error)}") from None

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        found = await self.read(key)
        return None if found is None else found.data

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``: readers see all of it or nothing."""
        check_key(key)
        await _write(key, obstore.put_async(self._writes, key, data, use_multipart=False))

    async def delete(self, key: str) -> bool:
        """Remove ``key``; return whether it existed just before (the delete itself does not report it)."""
        check_key(key)
        if not await self._is_there(key):
            return False
        await _write(key, obstore.delete_async(self._writes, key))
        return True

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted, page after page."""
        check_prefix(prefix)
        directory = prefix.rpartition("/")[0]
        try:
            pages = obstore.list(self._reads, prefix=directory or None, chunk_size=LIST_PAGE)
            found = [entry async for page in pages for entry in page if entry["path"].startswith(prefix)]
        except _FAILURES as error:
            raise Determinate(f"blobs {prefix!r} cannot be listed: {first_line(error)}") from error
        # Hadoop marks a directory by an empty object whose name ends in a slash, which the listing leaves out.
        return sorted([each["path"] for each in found if each["size"] or await self._is_there(each["path"])])

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is stored under ``key``; return whether it was stored."""
        check_key(key)
        try:
            await _write(key, obstore.put_async(self._writes, key, data, mode="create", use_multipart=False))
        except exceptions.AlreadyExistsError as error:
            # A store may also refuse because another request for the key is in flight, and that request may fail.
            if await self._is_there(key):
                return False
            raise Indeterminate(f"blob {key!r} was not stored by any writer: {first_line(error)}") from error
        return True

    async def read(self, key: str) -> Tagged | None:
        """Return what is stored under ``key`` with its tag, or None."""
        check_key(key)
        try:
            found = await obstore.get_async(self._reads, key)
            data = bytes(await found.bytes_async())
        except _ABSENT:
            return None
        except _FAILURES as error:
            raise Determinate(f"blob {key!r} cannot be read: {first_line(error)}") from error
        return Tagged(data, found.meta["e_tag"] or "")

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff the object under ``key`` has ``tag``; return whether it was stored."""
        check_key(key)
        try:
            await _write(key, obstore.put_async(self._writes, key, data, mode={"e_tag": tag}, use_multipart=False))
        except exceptions.PreconditionError:
            return False
        return True

    async def _is_there(self, key: str) -> bool:
        try:
            await obstore.head_async(self._reads, key)
        except _ABSENT:
            return False
        except _FAILURES as error:
            raise Determinate(f"blob {key!r} cannot be looked for: {first_line(error)}") from error
        return True


async def _write(key: str, request: Awaitable[T]) -> T:
    try:
        return await request
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise  # an answer, not a failure: the caller handles it
    except _REFUSED as error:
        raise Determinate(f"blob {key!r} was refused: {first_line(error)}") from error
    except _FAILURES as error:
        raise Indeterminate(f"blob {key!r} may or may not have changed: {first_line(error)}") from error
