"""Where objects are, and how their store is reached; the client of the store is made when it is opened.

The location is a URL: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://account/container/prefix``; everything
else (an endpoint, a region, credentials) is an option.  Options that are not given come from the environment variables
that the store's own tools read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from strandline.errors import ConfigError, first_line
from strandline.extras import S3, require
from strandline.options import PLACE, option
from strandline.store.secret import Secret, revealed

SCHEMES: Final = ("s3", "gs", "az")
REQUEST_SECONDS_MAX: Final = 60
"""The limit of one request with its body; persist retries for longer."""
CONNECT_SECONDS_MAX: Final = 5
READ_RETRIES_MAX: Final = 3


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
        """Return obstore's client.

        Raises `ConfigError` if the URL or an option is not known, or the library is not installed.
        """
        require(self.url, (S3,))
        from obstore import exceptions
        from obstore.store import from_url

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
