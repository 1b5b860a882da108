"""Blob in an object store, through the library obstore: S3 and compatible stores, Google Cloud, Azure.

The location is a URL: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://account/container/prefix``; everything
else (an endpoint, a region, credentials) is an option.  Options that are not given come from the environment variables
that the store's own tools read.

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
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import obstore
from obstore import exceptions
from obstore.store import from_url

from strandline.errors import ConfigError, Determinate, Indeterminate, Unavailable, first_line
from strandline.options import PLACE, option
from strandline.store.blob import Tagged
from strandline.store.keys import check_key, check_prefix
from strandline.store.secret import Secret, revealed

T = TypeVar("T")

SCHEMES: Final = ("s3", "gs", "az")
REQUEST_SECONDS_MAX: Final = 60
"""The limit of one request with its body; persist retries for longer."""
CONNECT_SECONDS_MAX: Final = 5
READ_RETRIES_MAX: Final = 3
LIST_PAGE: Final = 1000

_ABSENT: Final = (FileNotFoundError, exceptions.NotFoundError)
_REFUSED: Final = (*_ABSENT, PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
"""The store answered that it did nothing: no such bucket, or no permission."""
_OPERATORS_MOVE: Final = re.compile(r"status code: (?:30[0-9]|40[0134])\b")
"""Redirected, not allowed, or not found: retrying does not help, the operator must act."""
_FAILURES: Final = (*_REFUSED, exceptions.BaseError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How to reach an object store.  What is not said is taken from the variables that the store's own tools read."""

    endpoint: str | None = option(PLACE, "The URL of a server of one's own.", default=None)
    region: str | None = option(PLACE, "The bucket's region.", default=None)
    access_key_id: str | None = option(PLACE, "Which key signs requests.", default=None)
    secret_access_key: str | None = option(PLACE, "The key itself, by reference.", default=None)
    session_token: str | None = option(PLACE, "The token of a key that ends, by reference.", default=None)


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A place in an object store: its URL, and `StorageOptions` by name, which are obstore's names.

    Its ``repr`` shows no option's value.
    """

    url: str
    options: Mapping[str, str | Secret]

    def __repr__(self) -> str:
        return f"ObjectLocation({self.url!r}, options: {', '.join(sorted(self.options)) or 'none'})"

    def open(self, *, retries: int) -> Any:
        """Return obstore's client.  Raises `ConfigError` if the URL or an option is not known."""
        options = revealed(self.options)
        client = {
            "timeout": timedelta(seconds=REQUEST_SECONDS_MAX),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS_MAX),
            "allow_http": options.get("endpoint", "").startswith("http://"),
        }
        retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=REQUEST_SECONDS_MAX)}
        try:
            return from_url(self.url, config=options, client_options=client, retry_config=retry)  # type: ignore[call-overload]
        except (exceptions.BaseError, ValueError) as error:
            raise ConfigError(f"{self.url}: {first_line(error)}") from None  # other lines may hold an option


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
