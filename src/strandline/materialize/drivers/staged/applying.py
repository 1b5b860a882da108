"""The idempotent apply: brings a table to a transaction that the runtime's log has committed, at most once.

The table itself says which transaction of a writer it has.  Three answers are possible for transaction N.  At least N:
there is nothing to do.  N - 1: N is due.  Less: an older version of the table was put in its place, and applying N
would hide the missing transactions.  The commit succeeds only on the very version that gave the answer.  So a session
that was replaced and applies late finds its transaction there and changes nothing; and after every conflict with
another writer the question is asked again before the same staged files are tried again.

Rows are deleted by copying: the files that hold one of them are written again without them, and the commit exchanges
the files.  Rewritten rows are joined to larger files, so small transactions do not leave ever more of them.  If no
other program joins files (`Table.joins`), this is also done when rows are only added.

Law: M2.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import CorruptionError, DefinitionError, Unavailable
from strandline.materialize.drivers.staged import parquet
from strandline.materialize.drivers.staged.table import Change, Piece, Shape, Snapshot, Table, aligned, arrow_schema
from strandline.materialize.protocol.refusals import DAMAGED, REFILL_ALL, RUN_AS_ONE
from strandline.materialize.protocol.task import WHOLE, KeyRange, given_up
from strandline.materialize.stores import key_ids
from strandline.problem import Problem, Stopped
from strandline.store.clock import Ids

Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of hashes that are kept: 8 for each stored row, so 32 million rows."""


class Keys:
    """Some keys, as a table of the key columns, no key twice."""

    def __init__(self, columns: Sequence[str], rows: pa.Table) -> None:
        self.columns = tuple(columns)
        self.rows = rows
        self._hashes = pa.array(hashes(rows))

    def maybe(self, hashed: Hashes) -> Mask:
        """Return which of the hashes are of one of the keys: whose rows may have one."""
        return np.asarray(pc.is_in(pa.array(hashed), self._hashes).to_numpy(zero_copy_only=False), np.bool_)

    def __len__(self) -> int:
        return len(self.rows)

    def among(self, rows: pa.Table, hashed: Hashes) -> Mask:
        """Return which of ``rows`` (tables of the key columns) have one of the keys; ``hashed``: the rows' hashes."""
        found = self.maybe(hashed)
        places = np.flatnonzero(found)
        if not len(places):
            return found
        some = rows.take(pa.array(places))
        both = [
            pa.chunked_array([*mine.chunks, *theirs.chunks], mine.type)
            for mine, theirs in zip(self.rows.columns, some.columns, strict=True)
        ]
        ids = key_ids(both)
        found[places] = np.isin(ids[len(self) :], ids[: len(self)])
        return found


class KeyIndex:
    """The hashes of the keys of pieces, least recently used ones dropped first.  For one thread at a time.

    Keys are compared as values: NULL equals NULL, NaN equals NaN, -0.0 equals 0.0 (`stores.key_ids`).  A hash of each
    row's key is kept in memory, for as many files as there is room; a file never changes, so its hashes never do.  A
    key that no file has, which is the answer to most Loads, then costs no reading at all.
    """

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held_bytes_max = held_bytes_max
        self._held: OrderedDict[tuple[str, str], Hashes] = OrderedDict()
        self._bytes = 0

    def having(self, table: Table, piece: Piece, shape: Shape, keys: Keys) -> Mask | None:
        """Return which rows of ``piece`` have one of ``keys``; None: none of them."""
        known = self._held.get((table.name, piece.name))
        if known is not None:
            self._held.move_to_end((table.name, piece.name))
            if not keys.maybe(known).any():
                return None
        rows = _key_rows(table, piece, shape, keys.columns)
        if known is None:
            known = hashes(rows)
            self._keep((table.name, piece.name), known)
        found = keys.among(rows, known)
        return found if found.any() else None

    def _keep(self, name: tuple[str, str], hashed: Hashes) -> None:
        self._held[name] = hashed
        self._bytes += hashed.nbytes
        while self._bytes > self._held_bytes_max:
            self._bytes -= self._held.popitem(last=False)[1].nbytes


def _key_rows(table: Table, piece: Piece, shape: Shape, columns: Sequence[str]) -> pa.Table:
    schema = arrow_schema(shape)
    read = list(table.read(piece, shape, columns))
    wanted = pa.schema([schema.field(schema.names.index(each)) for each in columns])
    return pa.concat_tables(read) if read else wanted.empty_table()


def keys_in(columns: Sequence[str], shape: Shape, rows: pa.Table) -> Keys:
    """Return the keys in ``rows``, which has the columns in their order, as a table of ``shape`` has them."""
    schema = arrow_schema(shape)
    wanted = pa.schema([schema.field(schema.names.index(each)) for each in columns])
    return Keys(columns, aligned(rows, wanted))


def hashes(rows: pa.Table) -> Hashes:
    """Return a hash of each row, which is the same for rows that are not distinct.

    >>> nan = float("nan")
    >>> h = hashes(pa.table({"a": [0.0, -0.0, nan, nan, None, None], "b": ["x", "x", "", "", "", ""]}))
    >>> [bool(h[i] == h[i + 1]) for i in range(5)]
    [True, False, True, False, True]
    """
    names = [f"c{place}" for place in range(rows.num_columns)]
    plain = pa.Table.from_arrays([_zeroed(each) for each in rows.columns], names=names)
    with _database().cursor() as connection:
        connection.register("rows", plain)
        hashed = connection.sql(f"SELECT hash({', '.join(names)}) AS h FROM rows").to_arrow_table()  # noqa: S608 - no name is foreign
    return np.asarray(hashed["h"].to_numpy(), np.uint64)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return the process' database, which holds nothing: opening one takes longer than hashing a few thousand rows."""
    return duckdb.connect(":memory:", config={"threads": 1})


def _zeroed(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.add(values, pa.scalar(0, values.type)) if pa.types.is_floating(values.type) else values


STAGING: Final = "staging"
STAGED_IN: Final = "staged-in"
"""A state key has a dot in it, so none is equal to these."""
NOTHING_STAGED: Final = {STAGING: None, STAGED_IN: None}


class PieceForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `Piece` as JSON."""

    name: str
    rows: int
    size: int


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pieces to add to a table, and keys whose rows go.

    ``replaces``: the rows of the writer's key range that were there before go, too: a backfill begins.
    """

    owner: str
    resource: str
    key: tuple[str, ...]
    directory: str
    upto: int
    pieces: tuple[PieceForm, ...]
    keys: tuple[PieceForm, ...]
    replaces: bool = False
    begin: int = WHOLE.begin
    end: int = WHOLE.end

    @property
    def range(self) -> KeyRange:
        """The key range of its writer."""
        return KeyRange(self.begin, self.end)

    @property
    def gives_up(self) -> bool:
        """Whether it empties the table, for any task to fill."""
        return given_up(state_key_of(self.owner))

    @property
    def added(self) -> tuple[Piece, ...]:
        """The pieces to add."""
        return tuple(Piece(each.name, each.rows, each.size) for each in self.pieces)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the state has of one binding: its last transaction, and its work if that may not be applied yet."""

    writer: str
    number: int
    work: Work | None = None


# The driver's state, as JSON documents:
#
#     {"staging": "stage-…",                          the directory of the transaction that is being stored
#      "staged-in": ["orders"],                       the tables that have it
#      "orders.v0": {"writer": "…", "number": 7,      the binding's last transaction that the log has committed
#                    "work": {…}}}                    present until it is known to be applied
#
# Every update of the state is a merge patch.  ``staging`` is durable before the first file is written (with `Flushed`),
# and a commit names another directory than every later transaction.  So a session that opens with a state that still
# has ``staging`` knows that nothing of it was committed, and that no other session can commit it: the session that
# staged it is fenced by the log.  ``staged-in`` names the tables because a view may be dropped before the next session
# opens.
def writer_of(task: str, state_key: str, range_: KeyRange) -> str:
    """Return the name under which a table says which transactions of a binding's split it has.

    >>> writer_of("m", "t.v0", WHOLE)
    'strandline:00000000-ffffffff:t.v0:m'
    """
    return f"strandline:{range_.begin:08x}-{range_.end:08x}:{state_key}:{task}"


def owner_of(task: str, state_key: str) -> str:
    """Return the name of a binding that fills a table: JSON of the task's name and the state key."""
    return msgspec.json.encode([task, state_key]).decode()


def task_of(owner: str) -> str | None:
    """Return the task in an owner's name; None: it is none of ours.

    >>> task_of(owner_of("m", "t.v0")), task_of(""), task_of("[1]")
    ('m', None, None)
    """
    try:
        return msgspec.json.decode(owner, type=tuple[str, str])[0]
    except msgspec.MsgspecError:
        return None


def state_key_of(owner: str) -> str:
    """Return the state key in an owner's name, which `task_of` finds to be one of ours."""
    return msgspec.json.decode(owner, type=tuple[str, str])[1]


def entries(state: Any) -> Iterator[tuple[str, Entry]]:
    """Yield what the state has of each binding, by state key.  Raises `CorruptionError` for what no driver wrote."""
    if not isinstance(state, Mapping):
        return
    for name in sorted(state):
        if "." in name:
            try:
                yield name, msgspec.convert(state[name], Entry)
            except msgspec.ValidationError as error:
                raise CorruptionError(DAMAGED.said(what=f"the driver's state of {name!r}", why=error)) from error


def staging(state: Any) -> str | None:
    """Return the directory of a transaction that was being stored when the state was written."""
    return state.get(STAGING) if isinstance(state, Mapping) else None


def staged_in(state: Any) -> frozenset[str]:
    """Return the tables that have that directory; none in a state that an earlier version wrote."""
    return frozenset(state.get(STAGED_IN, ())) if isinstance(state, Mapping) else frozenset()


def named(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON."""
    return dict(msgspec.to_builtins(entry))


CONFLICTS_MAX: Final = 50
"""After so many commits that other writers came before, the apply fails, to be tried again later."""
PIECE_BYTES: Final = 32 * 1024 * 1024
"""A file is ended at about so many bytes of Arrow data."""
SMALL_BYTES: Final = 4 * 1024 * 1024
SMALL_MAX: Final = 32
"""More than so many files of less than `SMALL_BYTES` are joined."""
assert SMALL_BYTES < PIECE_BYTES

PIECES_MISSING: Final = Problem(
    "pieces-rows-missing",
    "{table}: of {wanted} rows to replace or delete {found} were there: another program changed the table",
    Stopped.ENDPOINT,
    (REFILL_ALL,),
)
STAGED_GONE: Final = Problem(
    "staged-file-gone",
    "{table}: the staged file {file!r} is gone before it was applied: another program removed it",
    Stopped.ENDPOINT,
    (REFILL_ALL,),
)
FILLED_GONE: Final = Problem(
    "filled-table-gone", "{table} is gone, though rows were stored in it", Stopped.ENDPOINT, (REFILL_ALL,)
)
ROLLED_BACK: Final = Problem(
    "table-rolled-back",
    "{table} has transaction {reached}, and {number} was applied: an older version of it was put in its place",
    Stopped.ENDPOINT,
    (REFILL_ALL,),
)
KEYLESS_ALONE: Final = Problem(
    "split-lacks-key",
    "{table} cannot be filled from the start by the split [{begin}, {end}] alone: a row without a key does not show "
    "which split it belongs to",
    Stopped.ENDPOINT,
    (RUN_AS_ONE,),
)


class Applier:
    """Applies works to the tables of one session or one `Driver.apply`.  Every call blocks."""

    def __init__(self, ids: Ids, index: KeyIndex) -> None:
        self._ids = ids
        self._index = index

    def apply(self, table: Table, entry: Entry) -> bool:
        """Bring ``table`` to the entry's transaction; return whether that had to be done.

        Raises:
                CorruptionError: rows or staged files that should be there are missing.
            Unavailable: the table is another binding's by now, or does not answer, or other writers keep it busy.
        """
        work = entry.work
        assert work is not None, "only what has work is applied"
        for _ in range(CONFLICTS_MAX):
            seen = table.snapshot(entry.writer)
            if seen is None and not work.gives_up:
                raise gone(table, work)
            # Of a table that is given up nothing is staged, and another may have it: then its rows are not ours.
            if seen is None or (work.gives_up and seen.owner != work.owner):
                return False
            if seen.reached >= entry.number:
                self._unstage(table, work)
                return False
            if seen.owner != work.owner:
                # Whether another session has taken the task over, the log says, when this one is opened anew.
                raise Unavailable(
                    f"{table.name} is filled by {seen.owner or 'another program'} by now; "
                    f"what was staged for it by {work.owner} is not applied"
                )
            if seen.reached != entry.number - 1:
                raise rolled_back(table, seen, entry.number - 1, task_of(work.owner))
            try:
                removed, rewritten = self._exchanged(table, seen, work)
            except _StagedFileIsGoneError as error:
                if _reached(table, entry.writer) >= entry.number:
                    return False  # another session has applied it meanwhile, and removed what it had staged
                raise error.explained(table, work) from error
            added = (*rewritten, *work.added)
            if table.commit(seen, Change(entry.writer, entry.number, work.upto, removed, added)):
                self._unstage(table, work)
                return True
            for piece in rewritten:
                table.place.remove(piece.name)
        raise Unavailable(f"{table.name}: {CONFLICTS_MAX} commits of other writers came before; it is tried again")

    def _unstage(self, table: Table, work: Work) -> None:
        for each in work.keys:
            table.place.remove(each.name)

    def _exchanged(self, table: Table, seen: Snapshot, work: Work) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
        """Return the pieces that go, and those with the rows of them that stay."""
        for piece in work.added:
            _require(table, piece)
        if work.replaces and work.range == WHOLE:
            return seen.pieces, ()
        masks = dict(self._replaced(table, seen, work) if work.replaces else self._dropped(table, seen, work))
        small = [piece for piece in seen.pieces if piece.size < SMALL_BYTES]
        if masks:
            removed = [piece for piece in seen.pieces if piece in masks or (piece in small and len(small) > SMALL_MAX)]
        else:  # rows stay in the order of their commits
            removed = _last_small(seen.pieces) if table.joins else []
            removed = removed if len(removed) > SMALL_MAX else []
        rewritten = self._rewritten(table, seen.shape, work.directory, removed, masks)
        return tuple(removed), tuple(rewritten)

    def _dropped(self, table: Table, seen: Snapshot, work: Work) -> Iterator[tuple[Piece, Mask]]:
        """Yield the pieces that hold one of the work's keys, with the rows that do.

        Raises `CorruptionError` unless every key is there exactly once.
        """
        keys = _staged_keys(table, seen.shape, work)
        if keys is None:
            return
        found = 0
        for piece in seen.pieces:
            mask = self._index.having(table, piece, seen.shape, keys)
            if mask is not None:
                found += int(mask.sum())
                yield piece, mask
        if found != len(keys):
            about = {"table": table.name, "wanted": len(keys), "found": found}
            raise CorruptionError(PIECES_MISSING.said(item=task_of(work.owner), **about))

    def _replaced(self, table: Table, seen: Snapshot, work: Work) -> Iterator[tuple[Piece, Mask]]:
        """Yield the pieces that hold rows of the work's key range, with these rows.

        Raises `DefinitionError` if the rows have no key.
        """
        if not work.key:
            about = {"begin": work.begin, "end": work.end, "item": task_of(work.owner)}
            raise DefinitionError(KEYLESS_ALONE.said(table=table.name, **about))
        from strandline.materialize.wire.tuples import key_hashes, within

        for piece in seen.pieces:
            rows = pa.concat_tables(list(table.read(piece, seen.shape, work.key)))
            mask = np.asarray(within(work.range, key_hashes(rows.columns)).to_numpy(zero_copy_only=False), np.bool_)
            if mask.any():
                yield piece, mask

    def _rewritten(
        self, table: Table, shape: Shape, directory: str, pieces: list[Piece], masks: dict[Piece, Mask]
    ) -> list[Piece]:
        attempt = self._ids.fresh("kept")
        found: list[Piece] = []
        kept = _kept(table, shape, pieces, masks)
        for number, some in enumerate(_bounded(kept)):
            piece = table.write(f"{directory}/{attempt}-{number}", iter(some), shape)
            if piece is not None:
                found.append(piece)
        return found


def _last_small(pieces: tuple[Piece, ...]) -> list[Piece]:
    """Return the small pieces after the last large one."""
    large = [place for place, piece in enumerate(pieces) if piece.size >= SMALL_BYTES]
    return list(pieces[large[-1] + 1 if large else 0 :])


def _kept(table: Table, shape: Shape, pieces: list[Piece], masks: dict[Piece, Mask]) -> Iterator[pa.Table]:
    names = [name for name, _ in shape]
    for piece in pieces:
        mask, place = masks.get(piece), 0
        for rows in table.read(piece, shape, names):
            if mask is None:
                yield rows
            else:
                stay = ~mask[place : place + len(rows)]
                yield rows.filter(pa.array(stay))
            place += len(rows)


def _bounded(tables: Iterator[pa.Table]) -> Iterator[list[pa.Table]]:
    """Yield the tables in lists of about `PIECE_BYTES`."""
    some: list[pa.Table] = []
    size = 0
    for table in tables:
        some.append(table)
        size += table.nbytes
        if size >= PIECE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _staged_keys(table: Table, shape: Shape, work: Work) -> Keys | None:
    """Return the keys whose rows go; None: there are none."""
    if not work.keys:
        return None
    schema = arrow_schema(shape)
    read: list[pa.Table] = []
    for each in work.keys:
        _require(table, Piece(each.name, each.rows, each.size))
        try:
            read += parquet.read(table.place, each.name, schema, work.key)
        except FileNotFoundError:
            raise _StagedFileIsGoneError(each.name) from None
    return keys_in(work.key, shape, pa.concat_tables(read))


class _StagedFileIsGoneError(Exception):
    """A file that a state names is not there, or is another one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def explained(self, table: Table, work: Work) -> CorruptionError:
        """Return the error for a user."""
        return CorruptionError(STAGED_GONE.said(table=table.name, file=self.name, item=task_of(work.owner)))


def _require(table: Table, piece: Piece) -> None:
    """Check that a staged file is there, whole."""
    try:
        size = table.place.size(piece.name)
    except FileNotFoundError:
        raise _StagedFileIsGoneError(piece.name) from None
    if size != piece.size:
        raise _StagedFileIsGoneError(piece.name)


def _reached(table: Table, writer: str) -> int:
    seen = table.snapshot(writer)
    return 0 if seen is None else seen.reached


def gone(table: Table, work: Work) -> DefinitionError:
    """Return the error for a table that was filled and is not there."""
    return DefinitionError(FILLED_GONE.said(table=table.name, item=task_of(work.owner)))


def rolled_back(table: Table, seen: Snapshot, number: int, task: str | None) -> CorruptionError:
    """Return the error for a table that is older than what ``task`` has applied to it; another may own it by now."""
    about = {"table": table.name, "reached": seen.reached, "number": number}
    return CorruptionError(ROLLED_BACK.said(item=task, **about))
