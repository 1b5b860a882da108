"""The options of an Iceberg source.

CREATE SOURCE sales (id BIGINT, amount DECIMAL(10,2)) FROM ICEBERG (
    catalog = 'rest', uri = 'https://catalog', credential = 'env:CATALOG', table = 'shop.sales')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

from strandline.connections.object_stores import StoreKeys
from strandline.options import PLACE, TEXT, one_of, option
from strandline.store.secret import Secret

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

    @property
    def properties(self) -> Mapping[str, Any]:
        """What the catalog and the object store need, by pyiceberg's names."""
        given = {theirs: getattr(self, ours) for ours, theirs in _PROPERTIES.items()}
        return {**self.others, **{name: Secret(text) for name, text in given.items() if text is not None}}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IcebergOptions(IcebergCatalog):
    """Which table is read."""

    path: str | None = option(
        TEXT,
        "Instead of `catalog`: the table's directory, if a `metadata/version-hint.text` there says what is newest; or "
        "one metadata file.",
        default=None,
    )
    table: str | None = option(TEXT, "The table in the catalog: namespace, a dot, name.", default=None)
    branch: str = option(TEXT, "Which branch of the table is followed.", default="main")

    def __post_init__(self) -> None:
        """Raise `ValueError` unless they name one table."""
        if (self.path is None) == (self.catalog is None):
            raise ValueError("give either path or catalog: they say where the table is")
        if (self.catalog is None) != (self.table is None):
            raise ValueError("catalog and table go together: which table of which catalog")

    @property
    def name(self) -> str:
        """What messages call the table."""
        return f"Iceberg table {self.path or self.table!r}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IcebergLooked(IcebergCatalog):
    """Where `strandline discover` looks."""

    path: str | None = option(TEXT, "Instead of `catalog`: a table's directory.", default=None)
    table: str | None = option(
        TEXT, "The table, or a namespace, whose tables are found; without it, all of the catalog.", default=None
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` unless they say where to look."""
        if (self.path is None) == (self.catalog is None):
            raise ValueError("give either path or catalog: they say where tables are")

    def named(self, table: str | None) -> IcebergOptions:
        """Return the options of a source that reads ``table`` of the catalog; None: the one at the path."""
        given = {each.name: getattr(self, each.name) for each in fields(IcebergCatalog)}
        return IcebergOptions(path=self.path, table=table, **given)


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
