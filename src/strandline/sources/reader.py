"""What a source must be able to do: say how far it could be read, read exactly what is asked for, forget what it may.

Reading is by range, so it repeats: every read of the same slices, at any time and after any crash, returns the same
updates in some order, until they are committed upstream.  That is what makes a source's collection definite before it
is durable.

Offsets are the reader's own: next message by partition, sequence number of a file, end of a commit in a log.  They
may have gaps.

One upstream may have several collections, *tables*: they share its offsets, and each is read by itself.  A source that
is one collection has the table "".

A table whose past upstream does not keep begins with a *snapshot*: what it held at some offsets.  Reading from
`NOTHING_READ` is the snapshot and what came after it; from anywhere else it is by range.

Contract suite: `strandline.testing.contracts.reader_contract`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from strandline.algebra.messages import DatedFile, FileFormat
from strandline.algebra.schema import Column, Schema, ddl_of
from strandline.errors import SourceError
from strandline.extras import no_extras
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.records import RecordShard
from strandline.plane import Staging
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ConnectionKind, Discovery
from strandline.sources.reclock import Slice
from strandline.store.clock import Clock
from strandline.store.secret import Secret

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.algebra.messages import MessageFormat, TopicRanges

O = TypeVar("O")  # noqa: E741 - a dataclass of options
O_contra = TypeVar("O_contra", contravariant=True)

COLUMNS_UNREAD: Final = Problem(
    "columns-unread",
    "upstream has columns that are not read: {columns}",
    Stopped.NOTHING,
    (Way("to read them from now on", "{altering} ADD COLUMNS ({columns})"),),
)


@dataclass(frozen=True, slots=True)
class Plain:
    """Every record is the insertion of a row: its diff is 1."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A record is the insertion of a row, or the withdrawal of one as it was: its diff is 1 or −1."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """A record is what the row of its key is from now on, or that there is none (columns: `algebra.messages`)."""

    key: tuple[str, ...]


Records: TypeAlias = Plain | TakenBack | Keyed
"""What the records of a table are; `sources.envelopes` makes updates of them."""
Progress: TypeAlias = Callable[[], Awaitable[RecordShard]]
"""Opens a reader's own shard, which holds its notes."""


class ColumnsAdded(SourceError):
    """What is to be read of ``table`` has ``columns`` that the table lacks, and it gets all that upstream has.

    ``table``: what upstream calls it, "" for a source that is one collection.  A reader raises it before it returns any
    row of the slices that it was asked for.  So nothing of a new column is lost: once the table has the columns, the
    same slices are read again.  A record without one of them has NULL there.
    """

    def __init__(self, table: str, columns: Sequence[Column]) -> None:
        super().__init__(table, tuple(columns))
        self.table = table
        self.columns = tuple(columns)

    def __str__(self) -> str:
        return f"upstream has columns that are to be added here: {ddl_of(self.columns)}"


class SourceReader(Protocol):
    """One upstream.  Any call may raise `SourceError` (upstream broke its promise) or `Unavailable` (ask later)."""

    @property
    def bounded(self) -> bool:
        """Whether upstream may really forget what is committed there: then it cannot be read again."""
        ...

    def records(self, table: str) -> Records:
        """Return what the rows of `read` are: the same answer once something of the table is durable.

        Until then a call of `snapshot` may change it.
        """
        ...

    async def snapshot(self, table: str) -> Offsets | None:
        """Return the offsets of the snapshot that `read` begins the table with; None: all of it can be read by range.

        Opens it upstream, or keeps the one that this reader has open.  It is asked for only while nothing of the table
        is durable.  Any number of reads may take it (errors are located by a second one); it ends when a later slice of
        the table is read, when one of its reads fails, or with the reader.  Then the next call opens another.
        """
        ...

    async def upstream_frontier(self) -> Offsets:
        """Ask upstream how far it could be read now.  What lies before the answer never changes."""
        ...

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return exactly these slices' records of ``table`` (lazy, normalised).

        Their columns are the table's, ``__time`` = the slice's, ``__diff`` = 1, or −1 for a record that upstream takes
        back; those of `Keyed` records besides.  A slice from `NOTHING_READ` of a table with a snapshot covers the
        snapshot's offsets; its records are the snapshot and what came after it, all at the slice's time.  If the
        snapshot was lost meanwhile, it is `Unavailable`.

        Messages that cannot be decoded are rows of the err half with diff 1.  With ``locate`` their ``__error`` says
        where each of them is and what is wrong with it, which may take more passes; without, only that they are
        errors.  The rows of the ok half are the same.  Where such a message takes a record back, its error says so
        (`algebra.messages`); ingestion cancels it with the error of that record.
        """
        ...

    async def commit(self, resume: Offsets) -> None:
        """Let upstream forget what lies before ``resume``.  Idempotent; never beyond what is durable (law R4)."""
        ...

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Return whether these are likely few rows (thousands), which are cheaper to collect than to write by Spark."""
        ...

    def notices(self) -> tuple[str, ...]:
        """Return what an operator should know though nothing is wrong yet, as of the last probe: one sentence each."""
        ...

    async def close(self) -> None:
        """Release connections and what is held upstream for this reader alone.  May be called at any moment, twice."""
        ...


class FileDecoder(Protocol):
    """Turns files into rows, on the data plane (implemented by the engine)."""

    async def reach(self, url: str, options: Mapping[str, str | Secret]) -> None:
        """Learn how objects below ``url`` (as ``s3://bucket/prefix``) are read, before any are decoded.

        Raises `ConfigError` if the data plane cannot reach them.
        """
        ...

    def open(self, path: str) -> pa.NativeFile:
        """Return a file, as it finds it, that can be read at any place.

        Raises `OSError`, or `Unavailable` if an object store does not answer; so does `stream`.
        """
        ...

    def stream(self, path: str) -> pa.NativeFile:
        """Return a file's text, decompressed as its name says."""
        ...

    async def decode(self, files: Sequence[DatedFile], schema: Schema, form: FileFormat, *, locate: bool) -> Rows:
        """Return the records of all files (lazy): as `SourceReader.read` says."""
        ...


class MessageDecoder(Protocol):
    """Turns messages of a log into records, on the data plane (implemented by the engine).

    Both ways give the same records for the same messages.
    """

    @property
    def connector(self) -> bool:
        """Whether `ranges` can be asked for: the engine has a connector of its own to the log."""
        ...

    async def messages(self, raw: pa.Table, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """Return the records of ``raw``, few messages that are in this process: as `SourceReader.read` says."""
        ...

    async def ranges(self, topic: TopicRanges, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """Return the records of many messages, which the engine itself reads (lazy): as `SourceReader.read` says."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a reader is opened with besides its options.

    ``name``: the source's. ``collections``: what each table feeds, as it is called here. ``schemas``: of the rows
    that it returns, by table. ``engine`` makes rows of Arrow, ``decoder`` of files, ``messages`` of messages.
    ``progress`` opens the record shard that is its own, under ``epoch``. ``evolving``: the tables that get the
    columns that upstream gets (`gained`). ``altering``: how the statement begins that adds columns to a table, as
    ``ALTER TABLE `t```. ``later``: the columns that each table has got since it was created: what is older upstream
    has none of them.  ``left_out``: files that are not read, although the source has not gone on without them yet; a
    reader that is given some is beside the one that runs, and lets no file leave.
    """

    clock: Clock
    schemas: Mapping[str, Schema]
    engine: Staging
    decoder: FileDecoder
    messages: MessageDecoder
    epoch: int
    progress: Progress
    evolving: frozenset[str] = frozenset()
    altering: Mapping[str, str] = field(default_factory=dict)
    later: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    name: str = ""
    collections: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    @property
    def schema(self) -> Schema:
        """The schema of a source that is one collection."""
        return self.schemas[""]

    def gained(self, table: str, found: Sequence[Column]) -> str:
        """Return a notice that names the columns among ``found`` that ``table`` lacks; empty: it lacks none.

        ``found``: all that upstream has now.  Raises `ColumnsAdded` instead if the table evolves.
        """
        columns = unknown_of(self.schemas[table], found)
        if not columns:
            return ""
        if table in self.evolving:
            raise ColumnsAdded(table, columns)
        return COLUMNS_UNREAD.said(columns=ddl_of(columns), altering=self.altering[table])


def unknown_of(schema: Schema, found: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns among ``found`` that ``schema`` lacks.

    A column whose name differs in case alone is the same one, unless upstream has both.

    >>> has = Schema((Column("id", "int"),))
    >>> unknown_of(has, [Column("ID", "int")]), unknown_of(has, [Column("id", "int"), Column("ID", "int")])
    ((), (Column(name='ID', type='int'),))
    """
    spelled = {column.name for column in found} & set(schema.names)
    exact, known = {name.lower() for name in spelled}, {name.lower() for name in schema.names}
    return tuple(c for c in found if c.name not in spelled and (c.name.lower() in exact or c.name.lower() not in known))


def any_schema(options: object, schema: Schema) -> None:
    """Accept every schema: what a record is read as is its definition's choice."""


def one_at_a_time(_: object) -> bool:
    """Have one process at a time read a source: upstream allows one reader, or deletes what that one has confirmed."""
    return False


def side_by_side(_: object) -> bool:
    """Have several processes read a source at once."""
    return True


def any_table(options: object, reference: str, schema: Schema) -> None:
    """Accept every table: whether upstream has it is found out when it is read."""


class OfFiles(Protocol):
    """What a reader of files says of them, and how it goes on without some, by their names.

    Each raises what stores raise; all but `kept` raise `DefinitionError` if the source has taken no such file.
    """

    async def taken(self, progress: RecordShard, source: str, files: Sequence[str]) -> Sequence[str]:
        """Return what ``files`` are, for people.  Writes nothing."""
        ...

    async def pass_over(self, given: Surroundings, name: str, *, withdrawn: bool) -> None:
        """Note durably that nothing more of a file is read; ``withdrawn``: and its rows are withdrawn.  Idempotent."""
        ...

    async def kept(self, given: Surroundings) -> Sequence[str]:
        """Return the files that the source goes on without and whose rows are not withdrawn."""
        ...


@dataclass(frozen=True, slots=True)
class ReaderKind(Generic[O]):
    """A reader that CREATE SOURCE can name: its connector's name, its options, and how it is opened.

    ``options`` is a dataclass of `strandline.options`.  ``check`` raises `DefinitionError` if rows of a schema cannot
    be made with these options: at CREATE SOURCE, before anything is stored.  ``open`` raises what stores raise, and
    `FencedError` if a newer epoch was admitted.

    ``connections``: the kinds of connection whose options a source may take from a connection, by the option that
    names it: ``connection``, or one that ends in ``_connection``.  ``tables``: a source feeds tables (CREATE TABLE …
    FROM SOURCE) and is no collection itself; then ``check_table`` is asked, and ``check`` never.  ``ask`` asks, at
    CREATE SOURCE, whether there is anything to read: it raises `SourceError` if not.  ``ask_table`` asks
    upstream whether it has a table as declared: it raises `SourceError` if not, and `Unavailable` within seconds if
    there is no answer.  ``ask_wider`` asks likewise, of a source that is there, whether it can read the columns of its
    schemas that it has not read yet.  ``called``: what upstream calls the table that a reference names, since several
    may name one.
    ``discovery``: how to find out what there is to read.  ``release`` has upstream let go what it keeps for a source
    that was dropped, if the source's notes say that it is its own and those of no other source of this kind do; it is
    given how to open these others' shards.  None: upstream keeps nothing.  It is idempotent, and returns what upstream
    keeps still, why, and what to do: empty if that is nothing.  ``clash`` says why a source with the first options
    cannot be beside one with the second, which is there: empty if it can.  None: it always can.  ``shared`` says of a
    source with these options whether several processes may read it at once, under one epoch: what one of them has bound
    or made durable, the others find and read the same (`SharedReaderContract`).  ``counts``: what an offset is the
    number of, in the plural, for people who look how far a source is behind.  ``needs``: the extras whose libraries
    a source with these options needs; the caller requires them before it opens, releases or asks upstream.

    ``alterable``: the options that say how a source goes on and not what it holds, so that they may change while it is
    there.  ``altered`` says why a source with the first options cannot go on with the second ones: empty if it can.
    ``of_files``: how a source goes on without some of its files.  None: a source of this kind reads no files.
    """

    name: str
    options: type[O]
    open: Callable[[O, Surroundings], Awaitable[SourceReader]]
    check: Callable[[O, Schema], None] = any_schema
    connections: Mapping[str, ConnectionKind] = field(default_factory=dict)
    tables: bool = False
    check_table: Callable[[O, str, Schema], None] = any_table
    ask: Callable[[O], Awaitable[None]] | None = None
    ask_table: Callable[[O, str, Schema], Awaitable[None]] | None = None
    ask_wider: Callable[[O, Surroundings], Awaitable[None]] | None = None
    called: Callable[[str], str] = str
    discovery: Discovery[Any] | None = None
    counts: str = "rows"
    release: Callable[[O, Surroundings, Sequence[Progress]], Awaitable[str]] | None = None
    clash: Callable[[O, O], str] | None = None
    shared: Callable[[O], bool] = one_at_a_time
    needs: Callable[[O], Sequence[str]] = no_extras
    alterable: tuple[str, ...] = ()
    altered: Callable[[O, O], str] | None = None
    of_files: OfFiles | None = None
