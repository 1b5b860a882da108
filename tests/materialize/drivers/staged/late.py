"""Works that are applied late, twice, out of order or to a table of another binding, for every format of tables."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import CorruptionError, Unavailable
from strandline.materialize.drivers.staged.applying import Applier, Entry, KeyIndex, Work, owner_of, writer_of
from strandline.materialize.drivers.staged.stage import Stage
from strandline.materialize.drivers.staged.table import Change, Lake, Snapshot, Table, shape_of
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.protocol.task import WHOLE, Binding, KeyRange
from strandline.materialize.wire.tuples import key_hashes, within
from strandline.testing.doubles import CountingIds

BINDING = Binding("v", "t", ("k",), Schema((Column("k", "bigint"), Column("x", "string"))))
OWNER = owner_of("m", BINDING.state_key)
_NUMBERS = count()
Row = tuple[int, str, bool, bool]
"""k, x, exists, delete."""


class Paused:
    """A table at whose first commit (or ``early``: after whose first snapshot) something happens."""

    def __init__(self, table: Table, meanwhile: Callable[[], None], *, early: bool = False) -> None:
        self._table = table
        self._meanwhile: Callable[[], None] | None = meanwhile
        self._early = early

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def snapshot(self, writer: str) -> Snapshot | None:
        seen = self._table.snapshot(writer)
        if self._early:
            self._happen()
        return seen

    def commit(self, seen: Snapshot, change: Change) -> bool:
        self._happen()
        return self._table.commit(seen, change)

    def _happen(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()


class Without:
    """A table, or its place, in which a file is missing."""

    def __init__(self, inner: Any, missing: str) -> None:
        self._inner = inner
        self._missing = missing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return Without(found, self._missing) if name == "place" else found

    def size(self, name: str) -> int:
        if name == self._missing:
            raise FileNotFoundError(name)
        return int(self._inner.size(name))


class Hand:
    """Stages and applies by hand."""

    def __init__(self, lake: Lake, range_: KeyRange = WHOLE) -> None:
        self.lake = lake
        self.range = range_
        self.writer = writer_of("m", BINDING.state_key, range_)
        self.shape = lake.stored(shape_of(BINDING))

    @property
    def table(self) -> Table:
        return self.lake.table("t")

    def entry(self, number: int, *rows: Row, replaces: bool = False, owner: str = OWNER) -> Entry:
        """Stage a transaction, and return what a state says of it."""
        directory = f"stage-{next(_NUMBERS)}"
        stage = Stage(self.table, BINDING, self.shape, directory, 0)
        ks, xs, exists, gone = zip(*rows, strict=True)
        stage.add(pa.table({"k": pa.array(ks, pa.int64()), "x": list(xs), EXISTS: list(exists), DELETE: list(gone)}))
        stage.end()
        pieces, keys = tuple(stage.pieces), tuple(stage.keys)
        ends = {"begin": self.range.begin, "end": self.range.end}
        work = Work(owner, "t", ("k",), directory, number, pieces, keys, replaces, **ends)
        return Entry(self.writer, number, work)

    def apply(self, entry: Entry, table: Any = None) -> bool:
        """Apply it in a session of its own."""
        return Applier(CountingIds(f"{next(_NUMBERS)}"), KeyIndex()).apply(table or self.table, entry)

    def rows(self) -> list[tuple[int, str]]:
        """Return what the table holds."""
        seen = self.table.snapshot("")
        assert seen is not None
        found = [each for piece in seen.pieces for each in self.table.read(piece, seen.shape, ["k", "x"])]
        return sorted((row["k"], row["x"]) for some in found for row in some.to_pylist())


def applied_while_a_successor_goes_on(lake: Lake) -> None:
    """Pause an apply at its commit while a successor applies the same transaction and the next one."""
    hand = Hand(lake)
    assert hand.table.create(hand.shape, OWNER)
    first = hand.entry(1, (1, "a", False, False), (2, "b", False, False), (3, "c", False, False), replaces=True)
    second = hand.entry(2, (2, "B", True, False), (3, "c", True, True), (4, "d", False, False))
    third = hand.entry(3, (4, "D", True, False))

    def successor(*entries: Entry) -> Callable[[], None]:
        return lambda: [hand.apply(each) for each in entries] and None

    assert not hand.apply(first, Paused(hand.table, successor(first, second)))
    assert hand.rows() == [(1, "a"), (2, "B"), (4, "d")]
    assert not hand.apply(second)
    assert not hand.apply(third, Paused(hand.table, successor(third)))
    assert not hand.apply(first)
    assert hand.rows() == [(1, "a"), (2, "B"), (4, "D")]
    fourth = hand.entry(4, (4, "x", True, True))
    assert not hand.apply(fourth, Paused(hand.table, successor(fourth), early=True)), "its staged keys are gone by then"
    assert hand.rows() == [(1, "a"), (2, "B")]


def applied_beside_another_split(lake: Lake) -> None:
    """Let two splits apply to one table, one in the middle of the other's commit; then let each begin a backfill."""
    left, right = Hand(lake, KeyRange(0, 2**31 - 1)), Hand(lake, KeyRange(2**31, 2**32 - 1))
    assert left.table.create(left.shape, OWNER)
    one = left.entry(1, (1, "left", False, False), replaces=False)
    other = right.entry(1, (2, "right", False, False), replaces=False)
    assert left.apply(one, Paused(left.table, lambda: right.apply(other) and None))
    assert left.rows() == [(1, "left"), (2, "right")]


def a_backfill_of_one_split(lake: Lake) -> None:
    """Let the split of the lower half begin anew: only rows of its keys go."""
    whole, lower = Hand(lake), Hand(lake, KeyRange(0, 2**31 - 1))
    assert whole.table.create(whole.shape, OWNER)
    assert whole.apply(whole.entry(1, *((k, "old", False, False) for k in range(20)), replaces=True))
    keys = pa.chunked_array([pa.array(range(20), pa.int64())])
    inside = within(lower.range, key_hashes([keys])).to_pylist()
    mine = [k for k in range(20) if inside[k]]
    assert 0 < len(mine) < len(inside)
    assert lower.apply(lower.entry(1, (mine[0], "new", False, False), replaces=True))
    assert lower.rows() == sorted([(mine[0], "new"), *((k, "old") for k in range(20) if not inside[k])])


def applied_to_a_table_of_another_binding(lake: Lake) -> None:
    """Give the table another owner before what the former one staged is applied."""
    hand = Hand(lake)
    assert hand.table.create(hand.shape, OWNER)
    assert hand.apply(hand.entry(1, (1, "a", False, False), replaces=True))
    late = hand.entry(2, (2, "b", False, False))
    seen = hand.table.snapshot("")
    assert seen is not None
    assert hand.table.own(seen, owner_of("m", "t.v1"), ())
    with pytest.raises(Unavailable, match="is not applied"):
        hand.apply(late)
    assert hand.rows() == [(1, "a")]


def applied_with_something_missing(lake: Lake) -> None:
    """Apply to a table that lacks a transaction, or a row, or whose staged files are gone."""
    hand = Hand(lake)
    assert hand.table.create(hand.shape, OWNER)
    assert hand.apply(hand.entry(1, (1, "a", False, False), replaces=True))
    with pytest.raises(CorruptionError, match="has transaction 1, and 4 was applied"):
        hand.apply(hand.entry(5, (2, "b", False, False)))
    with pytest.raises(CorruptionError, match="of 1 rows to replace or delete 0 were there"):
        hand.apply(hand.entry(2, (7, "x", True, True)))
    lost = hand.entry(2, (3, "b", True, False))
    assert lost.work is not None
    for each in (lost.work.pieces[0], lost.work.keys[0]):
        with pytest.raises(CorruptionError, match="is gone before it was applied"):
            hand.apply(lost, Without(hand.table, each.name))
    assert hand.rows() == [(1, "a")]


SCENARIOS = (
    applied_while_a_successor_goes_on,
    applied_beside_another_split,
    a_backfill_of_one_split,
    applied_to_a_table_of_another_binding,
    applied_with_something_missing,
)
