"""One Delta table as it is written: its columns, and transactions as commits of its log.

A commit adds the transaction's files, removes those that it exchanges, and holds an *application transaction*: the
writer's name and the number of its transaction, which the protocol keeps with the table for ever.  deltalake makes the
commit for exactly the next version and does not try another one (``max_commit_retries=0``): only of the version that
was read do we know that the transaction is still due.

MERGE is not used.  deltalake parses its condition as SQL, which finds no column whose name holds a backtick; and it
reads the whole table even for a transaction that only adds rows.  A commit of ours names the staged files as they are.

Columns are translated between Spark's simple strings and the JSON of Delta's schema.

Source: the Delta transaction log protocol ("Schema Serialization Format"); deltalake's documentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from strandline.algebra.schema import quote
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.errors import DefinitionError, Unavailable, first_line
from strandline.materialize.drivers.staged import parquet
from strandline.materialize.drivers.staged.place import ArrowPlace, LocalPlace, Place
from strandline.materialize.drivers.staged.table import Change, Piece, Shape, Snapshot, arrow_schema
from strandline.materialize.protocol.refusals import REFUSED, UNWRITABLE
from strandline.store.clock import Clock
from strandline.store.secret import Secret, revealed

_TO_DELTA: Final = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
_FROM_DELTA: Final = {theirs: ours for ours, theirs in _TO_DELTA.items()}


def schema_json(shape: Shape) -> str:
    """Return the schema of a table with these columns, all of which may be NULL.

    >>> schema_json((("a", "bigint"),))
    '{"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": true, "metadata": {}}]}'
    """
    return json.dumps(_struct([(name, parse(name, kind)) for name, kind in shape]))


def fields_json(shape: Shape) -> list[str]:
    """Return each column as the JSON of a field."""
    return [json.dumps(each) for each in _struct([(name, parse(name, kind)) for name, kind in shape])["fields"]]


def shape_of_json(text: str) -> Shape:
    """Return the columns in a schema's JSON.

    >>> shape_of_json(schema_json((("a", "array<struct<`b`:decimal(9,2)>>"), ("c", "timestamp_ntz"))))
    (('a', 'array<struct<`b`:decimal(9,2)>>'), ('c', 'timestamp_ntz'))
    >>> shape_of_json('{"fields": [{"name": "a", "type": "long", "nullable": false}]}')
    (('a', 'bigint NOT NULL'),)
    """
    return tuple(
        (each["name"], _text(each["type"]) + ("" if each["nullable"] else " NOT NULL"))
        for each in json.loads(text)["fields"]
    )


def _struct(fields: list[tuple[str, Type]]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": _delta(kind), "nullable": True, "metadata": {}} for name, kind in fields],
    }


def _delta(kind: Type) -> Any:
    match kind:
        case Atom(name):
            return _TO_DELTA.get(name, name)
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Array(element):
            return {"type": "array", "elementType": _delta(element), "containsNull": True}
        case Struct(fields):
            return _struct(list(fields))


def _text(kind: Any) -> str:
    match kind:
        case str():
            return _FROM_DELTA.get(kind, kind)
        case {"type": "array", "elementType": element}:
            return f"array<{_text(element)}>"
        case {"type": "struct", "fields": fields}:
            inner = (f"{quote(each['name'])}:{_text(each['type'])}" for each in fields)
            return f"struct<{','.join(inner)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{_text(key)},{_text(value)}>"
        case _:
            return json.dumps(kind)


OWNER: Final = "strandlineOwner"
"""The property of a table that names the binding which fills it."""
FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""The features of tables whose rules are kept here."""
WRITER_MAX: Final = 2
"""Up to this version of writers, a table without named features has only these."""
CHECKPOINT_EVERY: Final = "20"
"""After so many commits deltalake sums the log up, so that opening a table reads few files."""
_THERE: Final = re.compile(r"already exists|not empty", re.IGNORECASE)


class DeltaLakeTable:
    """A table at a URI."""

    joins = False  # OPTIMIZE does, and says in the log that no row changed

    def __init__(self, uri: str, storage: Mapping[str, Secret], clock: Clock) -> None:
        self._uri = uri
        self._storage = storage
        self._clock = clock
        self._place: Place | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"Delta table {self._uri!r}"

    @property
    def place(self) -> Place:
        """The table's directory."""
        if self._place is None:
            if "://" in self._uri:
                with self._asked():
                    handler = DeltaStorageHandler(self._uri, revealed(self._storage))
                self._place = ArrowPlace(pa_fs.PyFileSystem(handler))
            else:
                self._place = LocalPlace(Path(self._uri))
        return self._place

    def snapshot(self, writer: str) -> Snapshot | None:
        """See `Table.snapshot`.

        Raises `DefinitionError` if the table has features whose rules are not kept here.
        """
        try:
            with self._asked():
                delta = DeltaTable(self._uri, storage_options=revealed(self._storage))
                metadata = delta.metadata()
                self._check(delta)
                return Snapshot(
                    token=delta,
                    shape=shape_of_json(delta.schema().to_json()),
                    owner=metadata.configuration.get(OWNER) or "",
                    reached=delta.transaction_version(writer) or 0,
                    pieces=tuple(self._pieces(delta)),
                )
        except TableNotFoundError:
            return None

    def create(self, shape: Shape, owner: str) -> bool:
        """See `Table.create`."""
        try:
            with self._asked():
                if "://" not in self._uri:
                    Path(self._uri).mkdir(parents=True, exist_ok=True)
                DeltaTable.create(
                    self._uri,
                    DeltaSchema.from_json(schema_json(shape)),
                    configuration={OWNER: owner, "delta.checkpointInterval": CHECKPOINT_EVERY},
                    storage_options=revealed(self._storage),
                    raise_if_key_not_exists=False,
                )
        except (CommitFailedError, _TableIsThereError):
            return False
        return True

    def own(self, seen: Snapshot, owner: str, added: Shape) -> bool:
        """See `Table.own`: a commit for the columns, and one for the owner, which a crash may leave out."""
        delta: DeltaTable = seen.token
        with self._committing() as done:
            if added:
                fields = [Field.from_json(each) for each in fields_json(added)]
                delta.alter.add_columns(fields, commit_properties=_properties())
                delta.update_incremental()
            if owner != seen.owner:
                delta.alter.set_table_properties(
                    {OWNER: owner}, raise_if_not_exists=False, commit_properties=_properties()
                )
        return done.pop()

    def recreate(self, seen: Snapshot, shape: Shape, owner: str) -> bool:
        """See `Table.recreate`; the owner follows in a commit of its own."""
        delta: DeltaTable = seen.token
        with self._committing() as done:
            schema = DeltaSchema.from_json(schema_json(shape))
            delta.create_write_transaction([], "overwrite", schema, commit_properties=_properties())
            delta.update_incremental()
            delta.alter.set_table_properties({OWNER: owner}, raise_if_not_exists=False, commit_properties=_properties())
        return done.pop()

    def commit(self, seen: Snapshot, change: Change) -> bool:
        """See `Table.commit`."""
        delta: DeltaTable = seen.token
        now = self._clock.now_ms()
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(each.name, data_change=True, deletion_timestamp=now, size=each.size, partition_values={})
            for each in change.removed
        ]
        actions += [
            AddAction(each.name, each.size, {}, now, True, json.dumps({"numRecords": each.rows}))
            for each in change.added
        ]
        properties = _properties(
            custom_metadata={"strandlineUpTo": str(change.upto)},
            app_transactions=[Transaction(change.writer, change.number, now)],
        )
        schema = DeltaSchema.from_json(schema_json(seen.shape))
        with self._committing() as done:
            delta.create_write_transaction(actions, "append", schema, commit_properties=properties)
        return done.pop()

    def write(self, name: str, rows: Iterator[pa.Table], shape: Shape) -> Piece | None:
        """See `Table.write`."""
        whole = name + parquet.SUFFIX
        with self._asked():
            count = parquet.write(self.place, whole, rows, arrow_schema(shape))
            return Piece(whole, count, self.place.size(whole)) if count else None

    def read(self, piece: Piece, shape: Shape, columns: Sequence[str]) -> Iterator[pa.Table]:
        """See `Table.read`."""
        try:
            with self._asked():
                yield from parquet.read(self.place, piece.name, arrow_schema(shape), columns)
        except FileNotFoundError:
            raise Unavailable(f"{self.name}: file {piece.name!r} of it is gone") from None

    def _pieces(self, delta: DeltaTable) -> Iterator[Piece]:
        for action in pa.table(delta.get_add_actions()).to_pylist():
            rows = action.get("num_records")  # a file without statistics may have rows
            yield Piece(unquote(action["path"]), 1 if rows is None else int(rows), int(action["size_bytes"]))

    def _check(self, delta: DeltaTable) -> None:
        protocol, metadata = delta.protocol(), delta.metadata()
        features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        wrong = [f"the feature {each!r}" for each in sorted(features - FEATURES)]
        if not features and protocol.min_writer_version > WRITER_MAX:
            wrong.append(f"writers of version {protocol.min_writer_version}")
        if metadata.partition_columns:
            wrong.append(f"partitions by {', '.join(metadata.partition_columns)}")
        if (metadata.configuration.get("delta.appendOnly") or "").lower() == "true":
            wrong.append("the property delta.appendOnly")
        if wrong:
            raise DefinitionError(UNWRITABLE.said(table=self.name, what=" and ".join(wrong)))

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Say what an error of asking means; `TableNotFoundError`, `FileNotFoundError` and conflicts are left."""
        try:
            yield
        except (TableNotFoundError, FileNotFoundError, CommitFailedError):
            raise
        except SchemaMismatchError as error:
            raise DefinitionError(REFUSED.said(endpoint=self.name, why=first_line(error))) from error
        except (DeltaError, OSError) as error:
            if isinstance(error, DeltaError) and _THERE.search(first_line(error)):
                raise _TableIsThereError from error
            raise Unavailable(f"{self.name} does not answer: {first_line(error)}") from error

    @contextmanager
    def _committing(self) -> Iterator[list[bool]]:
        """Fill a list with whether a commit was made: it is not if another writer was there before."""
        done: list[bool] = []
        try:
            with self._asked():
                yield done
        except CommitFailedError:
            done.append(False)
        else:
            done.append(True)


class _TableIsThereError(Exception):
    """A table was made meanwhile."""


def _properties(**more: Any) -> CommitProperties:
    return CommitProperties(max_commit_retries=0, **more)
