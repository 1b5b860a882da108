"""How to reach tables of a lake: the options that readers and writers of Delta and Iceberg share.

The keys of the object stores are the same for both.  The options of Delta are named as in deltalake, those of an
Iceberg catalog as in pyiceberg.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from strandline import extras
from strandline.connections.addresses import Address, of_url
from strandline.errors import ConfigError
from strandline.options import PLACE, TEXT, Kind, one_of, option
from strandline.store.secret import Secret, revealed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


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


CATALOG_NAME: Final = "strandline"


class CatalogKind(Enum):
    """Who knows which metadata file of a table is the newest."""

    REST = "rest"
    SQL = "sql"
    GLUE = "glue"
    HIVE = "hive"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IcebergCatalog(StoreKeys):
    """A catalog and the object store of its tables, and how to reach them.  It has no ``repr``: some are secrets."""

    catalog: CatalogKind | None = option(
        one_of(CatalogKind), "The kind of the catalog that knows the tables.", default=None
    )
    catalog_name: str = option(
        TEXT,
        "The catalog's name. `sql`: tables belong to the catalog that made them under its name, and only those are "
        "there; pyiceberg and Spark call it as their configuration does.",
        default=CATALOG_NAME,
    )
    uri: str | None = option(PLACE, "The catalog's URI.", default=None)
    warehouse: str | None = option(PLACE, "The catalog's warehouse.", default=None)
    credential: str | None = option(PLACE, "REST: `client:secret`, by reference.", default=None)
    token: str | None = option(PLACE, "REST: a token instead, by reference.", default=None)
    scope: str | None = option(PLACE, "REST: the scope that is asked for with `credential`.", default=None)
    oauth2_server_uri: str | None = option(
        PLACE, "REST: the server that gives a token for `credential`; without it, the catalog.", default=None
    )

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`: the catalog, if it is a server, and the object store's own."""
        return (*of_url(self.uri), *StoreKeys.addresses(self))

    @property
    def properties(self) -> Mapping[str, Any]:
        """What the catalog and the object store need, by pyiceberg's names."""
        given = {theirs: getattr(self, ours) for ours, theirs in _PROPERTIES.items()}
        return {**self.others, **{name: Secret(text) for name, text in given.items() if text is not None}}


_PROPERTIES: Final = {
    "uri": "uri",
    "warehouse": "warehouse",
    "credential": "credential",
    "token": "token",
    "scope": "scope",
    "oauth2_server_uri": "oauth2-server-uri",
    "endpoint": "s3.endpoint",
    # Of all that is in AWS: Glue too, which knows no key of S3.
    "region": "client.region",
    "access_key_id": "client.access-key-id",
    "secret_access_key": "client.secret-access-key",
    "session_token": "client.session-token",
    "account_name": "adls.account-name",
    "account_key": "adls.account-key",
    "sas_token": "adls.sas-token",
    "tenant_id": "adls.tenant-id",
    "client_id": "adls.client-id",
    "client_secret": "adls.client-secret",
}


_CLIENTS: Final = {CatalogKind.SQL: "sqlalchemy", CatalogKind.GLUE: "boto3", CatalogKind.HIVE: "thrift"}
"""The modules by which pyiceberg asks catalogs of these kinds."""


def require_client(options: IcebergCatalog) -> None:
    """Raise `ConfigError` if the library that asks this kind of catalog is not installed."""
    kind = options.catalog
    if kind in _CLIENTS and not extras.there(_CLIENTS[kind]):
        extra = "sql-postgres" if (options.uri or "").startswith("postgres") else "sql-sqlite"
        extra = extra if kind is CatalogKind.SQL else kind.value
        raise ConfigError(
            f"the library {_CLIENTS[kind]}, which asks {kind.value} catalogs, is not installed: "
            f"pip install 'pyiceberg[{extra}]'"
        )


def catalog_of(options: IcebergCatalog) -> Catalog:
    """Return the catalog that ``options`` name; a REST catalog is asked for its configuration.

    Its client library takes long to import, so it is imported here.
    """
    from pyiceberg.catalog import load_catalog

    assert options.catalog is not None
    return load_catalog(options.catalog_name, type=options.catalog.value, **revealed(options.properties))
