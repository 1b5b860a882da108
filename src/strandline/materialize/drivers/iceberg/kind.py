"""Iceberg: the runtime's log is authoritative (pattern 3), and a table takes each transaction once.

Its client library takes long to import, so it is imported when a table is used.

CREATE MATERIALIZATION m INTO iceberg OPTIONS (catalog 'rest', uri 'https://c', namespace 'shop') AS orders KEY (id)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from strandline import extras
from strandline.algebra.schema import shown
from strandline.algebra.types import parse
from strandline.connections.lake import IcebergCatalog, catalog_of, require_client
from strandline.errors import DefinitionError
from strandline.materialize.driver import Constraint, ConstraintKind, DriverKind, no_name
from strandline.materialize.drivers.staged.driver import StagedDriver
from strandline.materialize.drivers.staged.place import path_part
from strandline.materialize.drivers.staged.table import Shape, Table
from strandline.materialize.protocol.holds import Days, Holds
from strandline.options import TEXT, option
from strandline.store.clock import Clock, SystemIds

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IcebergEndpointOptions(IcebergCatalog):
    """Where the tables are.  It has no ``repr``: some options are secrets."""

    namespace: str = option(TEXT, "The namespace of the tables, with dots between its parts; made if missing.")

    def __post_init__(self) -> None:
        """Raise `ValueError` if no catalog is named."""
        if self.catalog is None:
            raise ValueError("option 'catalog' is missing: a table can only be committed by a catalog")


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergResource:
    """Where a collection is."""

    table: str = option(
        TEXT,
        "The table in the namespace; other signs than letters, digits and `_-.=` are written as `!` and two "
        "hexadecimal digits.",
    )


HOLDS: Final = Holds("Iceberg", dates=Days(-719_162, 2_932_896, "dates and times of the years 1 to 9999"))
"""Its library writes the bounds of each column as Python's dates."""


class IcebergLake:
    """`Lake` of the tables of a namespace; ``opens`` opens the catalog, once."""

    def __init__(self, opens: Callable[[], Catalog], namespace: str) -> None:
        self._opens = opens
        self._namespace = tuple(namespace.split("."))

    @cached_property
    def _catalog(self) -> Catalog:
        return self._opens()

    def table(self, resource: str) -> Table:
        """See `Lake.table`."""
        from strandline.materialize.drivers.iceberg.table import IcebergTable

        if "\0" in resource:
            raise DefinitionError(f"the name {resource!r} holds a NUL, which Avro's names cannot: rename it")
        return IcebergTable(lambda: self._catalog, self._namespace, path_part(resource))

    def stored(self, shape: Shape) -> Shape:
        """See `Lake.stored`."""
        from strandline.materialize.drivers.iceberg.table import stored

        return stored(shape)

    @property
    def holds(self) -> Holds:
        """See `Lake.holds`."""
        return HOLDS

    def verdict(self, name: str, kind: str) -> Constraint:
        """See `Lake.verdict`."""
        if "\0" in name:
            return no_name(f"the name {shown(name)} holds a NUL, which Avro's names cannot")
        try:
            parse(name, kind)
        except DefinitionError as error:
            return Constraint(ConstraintKind.INCOMPATIBLE, str(error))
        ((_, own),) = self.stored(((name, kind),))
        return Constraint(ConstraintKind.FIELD_OPTIONAL, f"stored as {own}")


def _open(options: IcebergEndpointOptions, _clock: Clock) -> StagedDriver:
    require_client(options)
    return StagedDriver(KIND.spec, IcebergLake(lambda: catalog_of(options), options.namespace), SystemIds())


KIND: Final = DriverKind(
    "iceberg",
    IcebergEndpointOptions,
    IcebergResource,
    "docs/endpoints/iceberg.md",
    _open,
    lambda _: (extras.ICEBERG,),
)
