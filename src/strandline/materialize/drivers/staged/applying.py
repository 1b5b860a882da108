"""The idempotent apply: brings a table to a transaction that the runtime's log has committed, at most once.

The table itself says which transaction of a writer it has.  Three answers are possible for transaction N: at least N,
then there is nothing to do; N - 1, then it is due; less, then someone has put an older version of the table in place,
and applying would hide what is missing.  The commit succeeds only on the very version that gave the answer.  So a
session that was replaced meanwhile, and applies late, finds its transaction there and changes nothing; and after every
conflict, with any other writer, the answer is asked for anew before the same staged files are tried again.

Rows whose keys go are taken out by copying: the files that hold one of them are written again without them, and the
commit exchanges the files.  What is written again is joined to larger files, so small transactions do not leave ever
more of them.  Where no other program does that (`Table.joins`), it is done when rows are only added, too.

Law: M2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from strandline.errors import CorruptionError, DefinitionError, Unavailable
from strandline.materialize.drivers.staged import parquet
from strandline.materialize.drivers.staged.keys import KeyIndex, Keys, Mask, keys_in
from strandline.materialize.drivers.staged.shape import Shape, arrow_schema
from strandline.materialize.drivers.staged.table import Change, Piece, Snapshot, Table
from strandline.materialize.drivers.staged.work import Entry, Work, task_of
from strandline.materialize.protocol.refusals import REFILL_ALL, RUN_AS_ONE
from strandline.materialize.protocol.task import WHOLE
from strandline.problem import Problem, Stopped
from strandline.store.clock import Ids

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
        from strandline.materialize.wire.hashing import key_hashes, within

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
