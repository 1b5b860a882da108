"""Rows that come from outside, one bounded table after the other, as a frame: in memory while they are few.

Beyond that they are in Parquet files, which are deleted when the `Aside` is closed.  Executors read them.  So if
executors are on other machines, the files are below a prefix of the location's own objects (`InLocation`), which every
executor reaches; a sweep deletes what a killed process has left there.  A process that only reads may not put them
there (`Nowhere`).  If Spark runs in this process alone, they are in a temporary directory of this machine
(`OfThisMachine`).

`Arrivals` are the records of a reader, as an `Aside` whose rows have times of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Protocol, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.messages import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Distributed, Frame, Local, wrap
from strandline.engine.parts.part_store import Parts
from strandline.errors import Determinate, InvalidUsage
from strandline.persist.handles.contents import Rows

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of Arrow data that are kept in memory."""


class Place(Protocol):
    """Where the files of one `Aside` lie, by their numbers.  Calls block."""

    def put(self, number: int, data: bytes) -> None:
        """Store a Parquet file.

        Raises `Determinate` if this machine refuses it, and what the location's store raises.
        """
        ...

    @property
    def uri(self) -> str:
        """The directory of the files, as executors name it."""
        ...

    def clear(self) -> None:
        """Delete the files, as far as that is possible.  Idempotent."""
        ...


class OfThisMachine:
    """A temporary directory."""

    def __init__(self) -> None:
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def put(self, number: int, data: bytes) -> None:
        """See `Place.put`."""
        try:
            if self._directory is None:
                self._directory = tempfile.TemporaryDirectory(prefix="strandline-aside-")
            Path(self._directory.name, _name(number)).write_bytes(data)
        except OSError as error:
            raise Determinate(f"rows cannot be put aside in {tempfile.gettempdir()}: {error}") from error

    @property
    def uri(self) -> str:
        """See `Place.uri`."""
        assert self._directory is not None, "a file was put there"
        return Path(self._directory.name).as_uri()

    def clear(self) -> None:
        """See `Place.clear`."""
        if self._directory is not None:
            self._directory.cleanup()


class InLocation:
    """A prefix of the location's objects that nothing else uses."""

    def __init__(self, store: Parts, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def put(self, number: int, data: bytes) -> None:
        """See `Place.put`."""
        self._store.put_aside(f"{self._prefix}/{_name(number)}", data)

    @property
    def uri(self) -> str:
        """See `Place.uri`."""
        return self._store.uri(self._prefix)

    def clear(self) -> None:
        """See `Place.clear`."""
        self._store.delete_prefix(self._prefix)


class Nowhere:
    """The place of a process that may only read its location, while its executors read no file of this machine."""

    uri = ""

    def put(self, number: int, data: bytes) -> None:
        """Refuse it, with `Determinate`."""
        raise Determinate(
            f"more than {HELD_BYTES_MAX // 1024**2} MiB of rows have to lie where a cluster's executors read them, "
            "and a process that only reads puts nothing into its location: start Spark in this process "
            "(spark.master = 'local[*]')"
        )

    def clear(self) -> None:
        """Do nothing."""


Places: TypeAlias = Callable[[], Place]
"""Make a place for each `Aside`."""


def _name(number: int) -> str:
    return f"rows-{number:06}.parquet"


class Aside:
    """See `Aside`.  Rows are added by one thread at a time, and none after `rows` was asked for.

    ``known``: the columns that no file needs to have.
    """

    known: ClassVar[tuple[str, ...]] = (TIME, DIFF)

    def __init__(
        self,
        session: SparkSession,
        schema: Schema,
        time: int,
        held_bytes_max: int = HELD_BYTES_MAX,
        place: Places = OfThisMachine,
    ) -> None:
        self._session = session
        self._schema = schema
        self._time = time
        self._held_bytes_max = held_bytes_max
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._place = place()
        self._files = 0

    def add(self, table: pa.Table) -> None:
        """See `Aside.add`."""
        self._put(inline.stamped(table, self._schema, time=self._time, diff=1))

    def _put(self, table: pa.Table) -> None:
        self._held.append(table)
        self._bytes += table.nbytes
        if self._bytes > self._held_bytes_max:
            self._spill()

    def rows(self) -> Rows:
        """See `Aside.rows`."""
        return wrap(self._frame())

    def __enter__(self) -> Self:
        """Begin with no rows."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Forget all rows; no frame of them can be read after it."""
        self._held.clear()
        if self._files:
            self._place.clear()

    def _frame(self) -> Frame:
        if not self._files:
            columns = inline.update_schema(self._schema).empty_table().drop_columns([ERROR])
            return Local(pa.concat_tables([columns, *self._held]), plain=True)
        scan = self._scan(self._schema.ddl)
        columns = [*map(quote, self._schema.names), f"0L AS {TIME}", f"1L AS {DIFF}"]
        return Distributed(scan.selectExpr(*columns), plain=True, origin=self._time)

    def _scan(self, ddl: str) -> DataFrame:
        """Return the rows of all files, and of a last one for what is in memory."""
        if self._held:
            self._spill()
        # By their names, and not by what the directory holds: a file that is gone is an error, and no fewer rows.
        files = [f"{self._place.uri}/{_name(number)}" for number in range(1, self._files + 1)]
        return self._session.read.schema(ddl).parquet(*files)

    def _spill(self) -> None:
        """Move what is in memory into a file."""
        rows = pa.concat_tables([table.drop_columns(list(self.known)) for table in self._held])
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="lz4", store_schema=False)
        self._files += 1  # before it is there: one that may be there is deleted, too
        self._place.put(self._files, sink.getvalue().to_pybytes())
        self._held.clear()
        self._bytes = 0


_KEYED: Final[Mapping[str, tuple[pa.DataType, str]]] = {
    ORDER: (pa.int64(), "bigint"),
    GONE: (pa.bool_(), "boolean"),
    KEPT: (pa.list_(pa.field("element", pa.string())), "array<string>"),
}


class Arrivals(Aside):
    """See `Engine.arrivals`."""

    known: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        session: SparkSession,
        schema: Schema,
        *,
        keyed: bool,
        held_bytes_max: int = HELD_BYTES_MAX,
        place: Places = OfThisMachine,
    ) -> None:
        super().__init__(session, schema, 0, held_bytes_max, place)
        more = _KEYED if keyed else {}
        stored = inline.update_schema(schema)
        fields = [
            *(stored.field(name) for name in (*schema.names, ERROR)),
            *(pa.field(n, t[0]) for n, t in more.items()),
        ]
        self._target = pa.schema([*fields, stored.field(TIME), stored.field(DIFF)])
        ours = {ERROR: "string", **{name: kind for name, (_, kind) in more.items()}, TIME: "bigint", DIFF: "bigint"}
        self._ddl = ", ".join([schema.ddl, *(f"{quote(name)} {kind}" for name, kind in ours.items())])
        self._plain = not keyed
        self._erring = False

    def add(self, table: pa.Table) -> None:
        """See `Aside.add`."""
        given, wanted = {*table.column_names}, {*self._target.names}
        missing, unknown = wanted - given - {ERROR, KEPT}, given - wanted
        if missing or unknown:
            raise InvalidUsage(
                f"a reader's records have the columns {', '.join(self._target.names)}; "
                f"missing: {', '.join(sorted(missing)) or 'none'}; unknown: {', '.join(sorted(unknown)) or 'none'}"
            )
        aligned = inline.conform(table, self._target)
        self._plain = self._plain and pc.all(pc.equal(aligned[DIFF], 1)).as_py() is not False
        self._erring = self._erring or aligned[ERROR].null_count < aligned.num_rows
        self._put(aligned)

    def _frame(self) -> Frame:
        names = [name for name in self._target.names if name != ERROR or self._erring]
        if not self._files:
            table = pa.concat_tables([self._target.empty_table(), *self._held])
            return Local(table.select(names), plain=self._plain)
        scan = self._scan(self._ddl)
        return Distributed(scan.select(*map(quote, names)), plain=self._plain)
