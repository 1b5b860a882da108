"""Files: the runtime's log is authoritative (pattern 3), and a table takes each transaction once.

CREATE MATERIALIZATION m INTO files OPTIONS (path 's3://bucket/tables') AS orders KEY (id)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from strandline import extras
from strandline.algebra.types import parse
from strandline.connections.addresses import Address, of_url
from strandline.errors import DefinitionError
from strandline.materialize.driver import Constraint, ConstraintKind, DriverKind
from strandline.materialize.drivers.files import csv
from strandline.materialize.drivers.files.objects import LocalObjects, Objects
from strandline.materialize.drivers.files.table import Encoding, FilesTable, Layout
from strandline.materialize.drivers.staged.driver import StagedDriver
from strandline.materialize.drivers.staged.place import path_part
from strandline.materialize.drivers.staged.table import Shape, Table
from strandline.materialize.protocol.holds import EVERYTHING, Days, Holds
from strandline.options import DURATION_MS, PLACE, TEXT, one_of, option
from strandline.store.blob_kinds.object_location import SCHEMES, ObjectLocation, StorageOptions
from strandline.store.clock import Clock, Ids, SystemIds
from strandline.store.secret import Secret

RETENTION: Final = "10m"
CSV_HOLDS: Final = Holds("CSV", dates=Days(-12_687_063, 11_248_372, "dates and times of the years -32766 to 32766"))
"""Of other years Arrow writes no date."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FilesEndpointOptions(StorageOptions):
    """Where the tables are, and how.  It has no ``repr``: some options are secrets."""

    path: str = option(
        PLACE, "The directory, or the URL (`s3://…`, `gs://…`, `az://…`), below which each table is a directory."
    )
    format: Encoding = option(one_of(Encoding), "How the rows of new files are encoded.", default="parquet")
    retention: int = option(
        DURATION_MS,
        "For how long files stay that the newest manifest no longer names: a reader must be done with a manifest so "
        "long after the next one came.",
        default=RETENTION,
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` if the path's scheme is not known."""
        scheme, separator, _ = self.path.partition("://")
        if separator and scheme not in {"file", *SCHEMES}:
            raise ValueError(f"path is {self.path!r}: its scheme can be file, {', '.join(SCHEMES)}")

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`: a server of one's own."""
        return of_url(self.endpoint)

    @property
    def in_store(self) -> bool:
        """Whether the tables are in an object store."""
        return "://" in self.path.removeprefix("file://")

    @property
    def storage(self) -> dict[str, Secret]:
        """How the object store is reached, by obstore's names."""
        given = {each.name: getattr(self, each.name) for each in fields(StorageOptions)}
        return {name: Secret(text) for name, text in given.items() if text is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesResource:
    """Where a collection is."""

    table: str = option(
        TEXT,
        "The table's directory below the path; other signs than letters, digits and `_-.=` are written as `!` and two "
        "hexadecimal digits.",
    )


class FilesLake:
    """`Lake` of the tables below a path."""

    def __init__(self, options: FilesEndpointOptions, clock: Clock, ids: Ids) -> None:
        self._options = options
        self._layout = Layout(options.format, options.retention)
        self._clock = clock
        self._ids = ids

    def table(self, resource: str) -> Table:
        """See `Lake.table`."""
        at = f"{self._options.path.removeprefix('file://').rstrip('/')}/{path_part(resource)}"

        def opened() -> Objects:
            if "://" in at:
                from strandline.materialize.drivers.files.store_objects import StoreObjects

                return StoreObjects(ObjectLocation(at, self._options.storage))
            return LocalObjects(Path(at), self._ids)

        return FilesTable(at, opened, self._layout, self._clock)

    def stored(self, shape: Shape) -> Shape:
        """See `Lake.stored`: a manifest has Spark's types."""
        return shape

    @property
    def holds(self) -> Holds:
        """See `Lake.holds`."""
        return CSV_HOLDS if self._options.format is Encoding.CSV else EVERYTHING

    def verdict(self, name: str, kind: str) -> Constraint:
        """See `Lake.verdict`."""
        try:
            parse(name, kind)
        except DefinitionError as error:
            return Constraint(ConstraintKind.INCOMPATIBLE, str(error))
        if self._options.format is Encoding.CSV and (refusal := csv.refusal(name, kind)):
            return Constraint(ConstraintKind.INCOMPATIBLE, refusal)
        return Constraint(ConstraintKind.FIELD_OPTIONAL, f"stored as {kind}")


def _open(options: FilesEndpointOptions, clock: Clock) -> StagedDriver:
    return StagedDriver(KIND.spec, FilesLake(options, clock, SystemIds()), SystemIds())


def _needs(options: FilesEndpointOptions) -> Sequence[str]:
    return (extras.S3,) if options.in_store else ()


KIND: Final = DriverKind("files", FilesEndpointOptions, FilesResource, "docs/endpoints/files.md", _open, _needs)
