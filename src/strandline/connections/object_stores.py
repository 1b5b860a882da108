"""The keys of the object stores that tables of a lake are in: options that their readers and writers share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from strandline.connections.addresses import Address, of_url
from strandline.options import PLACE, Kind, option
from strandline.store.secret import Secret


def _properties(text: str) -> Secret:
    """Return the text of a JSON object.

    >>> _properties('{"s3.anonymous": "true"}')
    Secret(•••)
    """
    with suppress(ValueError):
        if isinstance(json.loads(text), dict):
            return Secret(text)
    raise ValueError('it must be a JSON object, as {"name": "value"}')


_OBJECT: Final = Kind(_properties, {"minLength": 2}, may_refer=True)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StoreKeys:
    """How to reach an object store.  It has no ``repr``: some are secrets."""

    endpoint: str | None = option(PLACE, "S3: the URL of a server of one's own.", default=None)
    region: str | None = option(PLACE, "S3: the bucket's region.", default=None)
    access_key_id: str | None = option(PLACE, "S3: which key signs requests.", default=None)
    secret_access_key: str | None = option(PLACE, "S3: the key itself, by reference.", default=None)
    session_token: str | None = option(PLACE, "S3: the token of a key that ends, by reference.", default=None)
    account_name: str | None = option(PLACE, "Azure: the storage account.", default=None)
    account_key: str | None = option(PLACE, "Azure: its key, by reference.", default=None)
    sas_token: str | None = option(PLACE, "Azure: a token that signs requests, by reference.", default=None)
    tenant_id: str | None = option(PLACE, "Azure: the tenant of an application that logs in.", default=None)
    client_id: str | None = option(PLACE, "Azure: the application.", default=None)
    client_secret: str | None = option(PLACE, "Azure: its secret, by reference.", default=None)
    client_properties: Secret | None = option(
        _OBJECT,
        "Other properties of the library that reads the tables (deltalake's `storage_options`, pyiceberg's catalog "
        "properties) by its names, as a JSON object; by reference if one of them is secret.",
        default=None,
    )

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`: a server of one's own."""
        return of_url(self.endpoint)

    @property
    def others(self) -> Mapping[str, Any]:
        """The other properties."""
        found: dict[str, Any] = {} if self.client_properties is None else json.loads(self.client_properties.reveal())
        return found
