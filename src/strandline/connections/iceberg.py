"""How to reach Iceberg tables: the options that their reader and their writer share, by pyiceberg's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from strandline import extras
from strandline.connections.addresses import Address, of_url
from strandline.connections.object_stores import StoreKeys
from strandline.errors import ConfigError
from strandline.options import PLACE, TEXT, one_of, option
from strandline.store.secret import Secret, revealed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

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
