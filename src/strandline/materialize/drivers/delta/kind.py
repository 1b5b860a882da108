"""Delta Lake: the runtime's log is authoritative (pattern 3), and a table takes each transaction once.

CREATE MATERIALIZATION m INTO delta OPTIONS (path = '/lake') AS orders INTO orders
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline import extras
from strandline.algebra.schema import shown
from strandline.algebra.types import parse
from strandline.connections.lake import DeltaKeys, check_scheme
from strandline.errors import DefinitionError
from strandline.materialize.driver import Constraint, ConstraintKind, DriverKind, no_name
from strandline.materialize.drivers.staged.driver import StagedDriver
from strandline.materialize.drivers.staged.place import path_part
from strandline.materialize.drivers.staged.table import Shape, Table
from strandline.materialize.protocol.holds import EVERYTHING, Holds
from strandline.options import PLACE, TEXT, option
from strandline.store.clock import Clock, SystemIds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeltaEndpointOptions(DeltaKeys):
    """Where the tables are.  It has no ``repr``: some options are secrets."""

    path: str = option(
        PLACE, "The directory, or the URL (`s3://…`, `gs://…`, `az://…`, `abfss://…`), below which each table is one."
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` if the path's scheme is not known."""
        check_scheme(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaResource:
    """Where a collection is."""

    table: str = option(
        TEXT,
        "The table's directory below the path; other signs than letters, digits and `_-.=` are "
        "written as `!` and two hexadecimal digits.",
    )


class DeltaLake:
    """`Lake` of the tables below a path."""

    def __init__(self, options: DeltaEndpointOptions, clock: Clock) -> None:
        self._root = options.path.removeprefix("file://").rstrip("/")
        self._storage = options.storage
        self._clock = clock

    def table(self, resource: str) -> Table:
        """See `Lake.table`."""
        from strandline.materialize.drivers.delta.table import DeltaLakeTable

        _check_name(resource)
        return DeltaLakeTable(f"{self._root}/{path_part(resource)}", self._storage, self._clock)

    def stored(self, shape: Shape) -> Shape:
        """See `Lake.stored`: Delta has all of Spark's types."""
        return shape

    @property
    def holds(self) -> Holds:
        """See `Lake.holds`."""
        return EVERYTHING

    def verdict(self, name: str, kind: str) -> Constraint:
        """See `Lake.verdict`."""
        try:
            _check_name(name)
        except DefinitionError as error:
            return no_name(str(error))
        try:
            parse(name, kind)
        except DefinitionError as error:
            return Constraint(ConstraintKind.INCOMPATIBLE, str(error))
        return Constraint(ConstraintKind.FIELD_OPTIONAL, f"stored as {kind}")


def _check_name(name: str) -> None:
    """Raise `DefinitionError` if deltalake could not read a table with this name, or with a column of it."""
    if not name or "\0" in name:
        raise DefinitionError(f"the name {shown(name)} is empty or holds a NUL, and deltalake ends names at a NUL")


def _open(options: DeltaEndpointOptions, clock: Clock) -> StagedDriver:
    return StagedDriver(KIND.spec, DeltaLake(options, clock), SystemIds())


KIND: Final = DriverKind(
    "delta", DeltaEndpointOptions, DeltaResource, "docs/endpoints/delta.md", _open, lambda _: (extras.DELTA,)
)
