"""How to reach Delta tables: the options that their reader and their writer share, by deltalake's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from strandline.connections.object_stores import StoreKeys
from strandline.options import PLACE, option
from strandline.store.secret import Secret

SCHEMES: Final = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss", "azure")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeltaKeys(StoreKeys):
    """How to reach the object store that Delta tables are in.  It has no ``repr``: some are secrets."""

    service_account_key: str | None = option(
        PLACE, "Google Cloud: the service account's key as JSON, by reference.", default=None
    )

    @property
    def storage(self) -> Mapping[str, Secret]:
        """What the object store needs, by deltalake's names."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name in _STORAGE}
        found = {name: Secret(str(value)) for name, value in self.others.items()}
        found |= {_STORAGE[name]: Secret(text) for name, text in given.items() if text is not None}
        if (self.endpoint or "").startswith("http://"):
            found["aws_allow_http"] = Secret("true")
        return found


def check_scheme(path: str) -> None:
    """Raise `ValueError` if the scheme of a table's path is not known.

    >>> check_scheme("/lake"), check_scheme("s3://lake/a")
    (None, None)
    """
    scheme, separator, _ = path.partition("://")
    if separator and scheme not in SCHEMES:
        raise ValueError(f"path is {path!r}: its scheme can be {', '.join(SCHEMES)}")


_STORAGE: Final = {
    "endpoint": "aws_endpoint_url",
    "region": "aws_region",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "account_name": "azure_storage_account_name",
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
    "tenant_id": "azure_storage_tenant_id",
    "client_id": "azure_storage_client_id",
    "client_secret": "azure_storage_client_secret",
    "service_account_key": "google_service_account_key",
}
