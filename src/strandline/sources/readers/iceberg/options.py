"""The options of an Iceberg source.

CREATE SOURCE sales (id BIGINT, amount DECIMAL(10,2)) FROM ICEBERG (
    catalog = 'rest', uri = 'https://catalog', credential = 'env:CATALOG', table = 'shop.sales')
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from strandline.connections.lake import IcebergCatalog
from strandline.options import TEXT, option


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
