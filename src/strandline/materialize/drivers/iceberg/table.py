"""One Iceberg table as it is written: its columns, and transactions as snapshots.

The commit of a snapshot adds the transaction's files, removes those that it exchanges, and sets a property of the table
to the number of the transaction.  The property decides what is applied: a snapshot's summary names the transaction too,
but snapshots expire.  The catalog commits only if the branch is still at the snapshot that was read, and pyiceberg's
own retries are off: only of that snapshot do we know that the transaction is still due.

Rows are deleted by copying the files that hold them (`applying`).  Delete files are not written: pyiceberg has no call
that writes one, and an equality delete would not spare rows that the same snapshot adds.

A data file has no ids of columns; the table's name mapping gives them, as for files that were added to a table.
Iceberg has no integer of fewer than 32 bits: `tinyint` and `smallint` are stored as `int`.

Source: the Iceberg table specification ("Snapshots", "Column Projection", "Primitive Types"); pyiceberg's
documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs
from pyiceberg import types as ice
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, parquet_files_to_data_files
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import FileScanTask, Transaction
from pyiceberg.table import Table as Stored

from strandline.algebra.schema import quote
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.connections.iceberg_answers import failed, unavailable
from strandline.errors import DefinitionError, Unavailable, first_line
from strandline.materialize.drivers.staged import parquet
from strandline.materialize.drivers.staged.place import ArrowPlace, LocalPlace, Place
from strandline.materialize.drivers.staged.table import Change, Piece, Shape, Snapshot, aligned, arrow_schema, text
from strandline.materialize.protocol.refusals import REFUSED, UNWRITABLE

_ATOMS: Final = {
    "boolean": ice.BooleanType(),
    "int": ice.IntegerType(),
    "bigint": ice.LongType(),
    "float": ice.FloatType(),
    "double": ice.DoubleType(),
    "string": ice.StringType(),
    "binary": ice.BinaryType(),
    "date": ice.DateType(),
    "timestamp": ice.TimestamptzType(),
    "timestamp_ntz": ice.TimestampType(),
}
_NAMES: Final = {str(kind): name for name, kind in _ATOMS.items()}
_NARROW: Final = ("tinyint", "smallint")


def widened(kind: Type) -> Type:
    """Return the type as Iceberg has it.

    >>> text(widened(Array(Struct((("a", Atom("tinyint")),)))))
    'array<struct<`a`:int>>'
    """
    match kind:
        case Atom(name):
            return Atom("int") if name in _NARROW else kind
        case Array(element):
            return Array(widened(element))
        case Struct(fields):
            return Struct(tuple((name, widened(field)) for name, field in fields))
        case _:
            return kind


def stored(shape: Shape) -> Shape:
    """Return columns as an Iceberg table has them."""
    return tuple((name, text(widened(parse(name, kind)))) for name, kind in shape)


def schema_of(shape: Shape) -> Schema:
    """Return the schema of a table with these columns, all of which may be NULL; its ids are numbers in order.

    >>> shape_of(schema_of((("a", "array<struct<`b`:decimal(9,2)>>"), ("c", "timestamp_ntz"))))
    (('a', 'array<struct<`b`:decimal(9,2)>>'), ('c', 'timestamp_ntz'))
    """
    ids = count(1)
    return Schema(*(ice.NestedField(next(ids), name, type_of(parse(name, kind), ids)) for name, kind in shape))


def type_of(kind: Type, ids: count[int]) -> ice.IcebergType:
    """Return Iceberg's type, which takes ids of its fields from ``ids``."""
    match kind:
        case Atom(name):
            return _ATOMS[name]
        case Decimal(precision, scale):
            return ice.DecimalType(precision, scale)
        case Array(element):
            return ice.ListType(next(ids), type_of(element, ids), element_required=False)
        case Struct(fields):
            return ice.StructType(*(ice.NestedField(next(ids), name, type_of(field, ids)) for name, field in fields))


def shape_of(schema: Schema) -> Shape:
    """Return the columns in a schema."""
    return tuple(
        (field.name, _text(field.field_type) + (" NOT NULL" if field.required else "")) for field in schema.fields
    )


def _text(kind: ice.IcebergType) -> str:
    match kind:
        case ice.DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case ice.ListType():
            return f"array<{_text(kind.element_type)}>"
        case ice.StructType():
            return f"struct<{','.join(f'{quote(each.name)}:{_text(each.field_type)}' for each in kind.fields)}>"
        case _:
            return _NAMES.get(str(kind), str(kind))


OWNER: Final = "strandline-owner"
REACHED: Final = "strandline-reached "
"""Before a writer's name: the property with the number of its last transaction."""
MAPPING: Final = "schema.name-mapping.default"
RETRIES: Final = "commit.retry.num-retries"


class IcebergTable:
    """The table ``name`` of a namespace.  ``opened`` opens the catalog, when it is used first."""

    joins = False  # rewrite_data_files does, and says in the snapshot that no row changed

    def __init__(self, opened: Callable[[], Catalog], namespace: tuple[str, ...], name: str) -> None:
        self._opened = opened
        self._namespace = namespace
        self._name = name
        self._table: Stored | None = None
        self._files: dict[str, DataFile] = {}
        self._manifests: dict[str, list[DataFile]] = {}
        self._place: Place | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"Iceberg table {'.'.join((*self._namespace, self._name))!r}"

    @property
    def place(self) -> Place:
        """The table's location."""
        if self._place is None:
            with self._asked():
                self._place = _place(self.name, self._loaded)
        return self._place

    def snapshot(self, writer: str) -> Snapshot | None:
        """See `Table.snapshot`.

        Raises `DefinitionError` if the table has partitions or delete files.
        """
        try:
            with self._asked():
                self._table = table = self._opened().load_table((*self._namespace, self._name))
                if table.spec().fields:
                    raise DefinitionError(UNWRITABLE.said(table=self.name, what="partitions"))
                self._files = {self._relative(each.file_path): each for each in self._live(table)}
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        properties = table.properties
        return Snapshot(
            token=table,
            shape=shape_of(table.schema()),
            owner=properties.get(OWNER, ""),
            reached=int(properties.get(f"{REACHED}{writer}", "0")),
            pieces=tuple(Piece(name, file.record_count, file.file_size_in_bytes) for name, file in self._files.items()),
        )

    def create(self, shape: Shape, owner: str) -> bool:
        """See `Table.create`; a namespace that is not there is made, too."""
        schema = assign_fresh_schema_ids(schema_of(shape))
        properties = {OWNER: owner, MAPPING: schema.name_mapping.model_dump_json()}
        try:
            with self._asked():
                self._opened().create_namespace_if_not_exists(self._namespace)
                self._opened().create_table((*self._namespace, self._name), schema, properties=properties)
        except TableAlreadyExistsError:
            return False
        return True

    def own(self, seen: Snapshot, owner: str, added: Shape) -> bool:
        """See `Table.own`."""
        table: Stored = seen.token
        with self._committing() as done:
            transaction = _once(table)
            if added:
                with transaction.update_schema() as update:
                    for field in schema_of(added).fields:
                        update.add_column((field.name,), field.field_type)
            properties = {OWNER: owner}
            if MAPPING not in table.properties:
                properties[MAPPING] = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties(properties)
            transaction.commit_transaction()
        return done.pop()

    def recreate(self, seen: Snapshot, shape: Shape, owner: str) -> bool:
        """See `Table.recreate`: the table is dropped, and made again."""
        with self._asked():
            self._opened().drop_table((*self._namespace, self._name))
        self._place = None
        return self.create(shape, owner)

    def commit(self, seen: Snapshot, change: Change) -> bool:
        """See `Table.commit`."""
        table: Stored = seen.token
        summary = {"strandline-transaction": str(change.number), "strandline-up-to": str(change.upto)}
        with self._committing() as done:
            paths = [f"{table.location().rstrip('/')}/{each.name}" for each in change.added]
            added = list(parquet_files_to_data_files(table.io, table.metadata, iter(paths)))
            transaction = _once(table)
            snapshot = transaction.update_snapshot(snapshot_properties=summary)
            with snapshot.overwrite() if change.removed else snapshot.merge_append() as update:
                for each in change.removed:
                    update.delete_data_file(self._files[each.name])
                for file in added:
                    update.append_data_file(file)
            transaction.set_properties({f"{REACHED}{change.writer}": str(change.number)})
            transaction.commit_transaction()
        return done.pop()

    def write(self, name: str, rows: Iterator[pa.Table], shape: Shape) -> Piece | None:
        """See `Table.write`."""
        whole = name + parquet.SUFFIX
        with self._asked():
            count = parquet.write(self.place, whole, rows, arrow_schema(shape))
            return Piece(whole, count, self.place.size(whole)) if count else None

    def read(self, piece: Piece, shape: Shape, columns: Sequence[str]) -> Iterator[pa.Table]:
        """See `Table.read`: by the ids of columns, as other programs may have written the file again."""
        table, schema = self._loaded, arrow_schema(shape)
        wanted = pa.schema([schema.field(schema.names.index(each)) for each in columns])
        try:
            with self._asked():
                scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), AlwaysTrue())
                for batch in scan.to_record_batches([FileScanTask(self._files[piece.name])]):
                    yield aligned(pa.Table.from_batches([batch]), wanted)
        except FileNotFoundError:
            raise Unavailable(f"{self.name}: file {piece.name!r} of it is gone") from None

    @property
    def _loaded(self) -> Stored:
        if self._table is None and self.snapshot("") is None:
            raise Unavailable(f"{self.name} is not there")  # the next session says what that means
        assert self._table is not None, "a snapshot loads the table"
        return self._table

    def _relative(self, path: str) -> str:
        root = f"{self._table.location().rstrip('/')}/" if self._table is not None else ""
        if not path.startswith(root):
            what = f"the file {path!r} elsewhere than at its location"
            raise DefinitionError(UNWRITABLE.said(table=self.name, what=what))
        return path.removeprefix(root)

    def _live(self, table: Stored) -> Iterator[DataFile]:
        """Yield the data files of the newest snapshot; a manifest never changes, so each is read once."""
        snapshot, known = table.current_snapshot(), self._manifests
        self._manifests = {}
        for manifest in [] if snapshot is None else snapshot.manifests(table.io):
            if manifest.content == ManifestContent.DELETES:
                raise DefinitionError(UNWRITABLE.said(table=self.name, what="delete files"))
            path = manifest.manifest_path
            read = known.get(path)
            if read is None:
                read = [each.data_file for each in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
            self._manifests[path] = read
            yield from read

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Say what an error of asking means; what says that something is there, or not, is left to the caller."""
        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError, TableAlreadyExistsError, CommitFailedException):
            raise
        except FileNotFoundError:
            raise
        except ValidationError as error:
            raise DefinitionError(REFUSED.said(endpoint=self.name, why=first_line(error))) from error
        except Exception as error:
            if failed(error):
                raise unavailable(self.name, error) from error
            raise

    @contextmanager
    def _committing(self) -> Iterator[list[bool]]:
        """Fill a list with whether a commit was made: it is not if another writer was there before."""
        done: list[bool] = []
        try:
            with self._asked():
                yield done
        except CommitFailedException:
            done.append(False)
        else:
            done.append(True)


def _once(table: Stored) -> Transaction:
    """Return a transaction that is committed on what was seen, or not at all."""
    metadata = table.metadata.model_copy(update={"properties": {**table.properties, RETRIES: "0"}})
    return Transaction(Stored(table.name(), metadata, table.metadata_location, table.io, table.catalog))


def _place(name: str, table: Stored) -> Place:
    location, files = table.location(), table.io
    if not isinstance(files, PyArrowFileIO):
        what = f"the location {location!r}, for which Arrow has no file system"
        raise DefinitionError(UNWRITABLE.said(table=name, what=what))
    scheme, netloc, path = PyArrowFileIO.parse_location(location, files.properties)
    if scheme in {"", "file"}:
        return LocalPlace(Path(path))
    return ArrowPlace(pa_fs.SubTreeFileSystem(path, files.fs_by_scheme(scheme, netloc)))
