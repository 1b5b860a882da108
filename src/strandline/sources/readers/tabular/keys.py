"""The keys of the object stores that tables of a lake are in: options that their readers share."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.options import PLACE, option


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
