"""Blob in an object store: S3 and what speaks like it, Google's, Azure's; through the library obstore.

The location is a URL: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://account/container/prefix``; whatever else
is to be said (an endpoint, a region, credentials) is an option.  Options that are not given come from the environment
variables that the store's own tools read.

A put is atomic and durable when it returns; a conditional put is linearizable (S3: ``If-None-Match``, ``If-Match``).
Nothing that writes is repeated in here: a request that is repeated after its answer was lost finds its own object, and
takes it for another's.  So persist repeats, which knows its own tokens.

`Determinate` is the store's own refusal (`_REFUSED`), and whatever happens to a read.  All else may have happened.

Warning: whether a conditional put is honest, no client can tell.  Stores that only pretend exist; run the contract.

Source: design page "persist" (implementations of Blob).  Contract suite: `strandline.testing.blob_contract`.
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

from strandline.errors import ConfigError, Determinate, Indeterminate, Unavailable
from strandline.store.blob import Tagged
from strandline.store.keys import check_key, check_prefix
from strandline.store.secret import Secret, revealed

T = TypeVar("T")

SCHEMES: Final = ("s3", "gs", "az")
REQUEST_SECONDS_MAX: Final = 60
"""Of one request with its body; persist waits longer and asks again."""
CONNECT_SECONDS_MAX: Final = 5
READ_RETRIES_MAX: Final = 3
LIST_PAGE: Final = 1000

_ABSENT: Final = (FileNotFoundError, exceptions.NotFoundError)
_REFUSED: Final = (*_ABSENT, PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
"""The store answered, and did nothing: no such bucket, no right to it."""
_OPERATORS_MOVE: Final = re.compile(r"status code: (?:30[0-9]|40[0134])\b")
"""Elsewhere, or not allowed, or not there: asking again will not help."""
_FAILURES: Final = (*_REFUSED, exceptions.BaseError, OSError)


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A place in an object store: its URL, and options by obstore's names (``endpoint``, ``region``, …).

    Its text names no option's value.
    """

    url: str
    options: Mapping[str, str | Secret]

    def __repr__(self) -> str:
        return f"ObjectLocation({self.url!r}, options: {', '.join(sorted(self.options)) or 'none'})"

    def open(self, *, retries: int) -> Any:
        """Return obstore's client.  Raises `ConfigError`: the URL or an option is not known."""
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
            raise ConfigError(f"{self.url}: {_told(error)}") from None  # the rest of the message may hold an option


class ObjectBlob:
    """An `ObjectStore` below ``location``.

    Raises:
        ConfigError: the location cannot be an object store's, or there is no such bucket, or no right to it.
        Unavailable: it does not answer.
    """

    def __init__(self, location: ObjectLocation) -> None:
        self._writes = location.open(retries=0)
        self._reads = location.open(retries=READ_RETRIES_MAX)
        try:
            next(iter(obstore.list(self._reads, chunk_size=1)), None)
        except _FAILURES as error:
            if _OPERATORS_MOVE.search(_told(error)):
                raise ConfigError(f"{location.url} cannot be used: {_told(error)}") from None
            raise Unavailable(f"{location.url} does not answer: {_told(error)}") from None

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        found = await self.read(key)
        return None if found is None else found.data

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``: readers see all of it or nothing."""
        check_key(key)
        await _write(key, obstore.put_async(self._writes, key, data, use_multipart=False))

    async def delete(self, key: str) -> bool:
        """Remove ``key``; tell whether it was there a moment ago (the store itself does not tell)."""
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
            raise Determinate(f"blobs {prefix!r} cannot be listed: {_told(error)}") from error
        # Hadoop marks a directory by an empty object whose name ends in a slash, which the listing leaves out.
        return sorted([each["path"] for each in found if each["size"] or await self._is_there(each["path"])])

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is stored under ``key``; tell whether that was so."""
        check_key(key)
        try:
            await _write(key, obstore.put_async(self._writes, key, data, mode="create", use_multipart=False))
        except exceptions.AlreadyExistsError as error:
            # A store may also refuse because another request for the key is under way; that one may come to nothing.
            if await self._is_there(key):
                return False
            raise Indeterminate(f"blob {key!r} was not made, and nobody else has made it: {_told(error)}") from error
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
            raise Determinate(f"blob {key!r} cannot be read: {_told(error)}") from error
        return Tagged(data, found.meta["e_tag"] or "")

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff what is stored under ``key`` has ``tag``; tell whether that was so."""
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
            raise Determinate(f"blob {key!r} cannot be looked for: {_told(error)}") from error
        return True


async def _write(key: str, request: Awaitable[T]) -> T:
    try:
        return await request
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise  # an answer, not a failure: the caller's
    except _REFUSED as error:
        raise Determinate(f"blob {key!r} was refused: {_told(error)}") from error
    except _FAILURES as error:
        raise Indeterminate(f"blob {key!r} may or may not have changed: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """Return the first line: the others show how the client was configured."""
    return next(iter(str(error).splitlines()), type(error).__name__)
