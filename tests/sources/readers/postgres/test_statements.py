"""What the server's answers mean, without a server: of tables, of slots, and of what `discover` says of both."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.sources.readers.postgres import statements
from strandline.sources.readers.postgres.kind import found_table
from strandline.sources.readers.postgres.pgoutput import Identity
from strandline.sources.readers.postgres.server import Published, SlotStanding, UpstreamColumn, UpstreamTable

ID = ("id", 20, -1, "bigint", True, ",")
TEXT = ("text", 25, -1, "text", False, ",")


@pytest.mark.parametrize(
    ("identity", "columns", "noted"),
    [("d", [ID, TEXT], False), ("d", [TEXT], True), ("i", [TEXT], True), ("f", [TEXT], False), ("n", [TEXT], True)],
)
def test_a_table_whose_rows_cannot_be_updated_is_noted(identity: str, columns: list[Any], noted: bool) -> None:
    """Damage: a source is made, and from then on the server refuses the application's updates."""
    of = tuple(UpstreamColumn(*each) for each in columns)
    found = found_table(UpstreamTable("public", "t", Identity(identity), of, Published(frozenset())))
    assert ("no replica identity" in found.note) is noted


def test_a_table_is_read_with_all_that_the_server_says() -> None:
    """Damage: a table that was written anew, or is partitioned, is read on as if nothing had happened."""
    kept = {"file": 7, "parts": [8, 9], "unlike": "part_1", "filled": ["id"], "highest": 4}
    row = ("s", "t", b"d", True, "(id > 3)", 12, 99, ["e1"], True, kept, {"id": [1, 500]}, [ID])
    plain: tuple[Any, ...] = (
        "s",
        "u",
        "f",
        False,
        "",
        -1,
        98,
        [],
        False,
        {"file": 6, "parts": None, "unlike": None, "filled": None, "highest": 3},
        None,
        None,
    )
    empty = (*plain[:5], 0, *plain[6:])
    table, other, counted = statements.tables([row, plain, empty])
    assert (table.identity, table.partitioned, table.where, table.about, table.oid) == (
        Identity("d"),
        True,
        "(id > 3)",
        12,
        99,
    )
    assert table.columns == (UpstreamColumn(*ID),)
    assert (table.published.entries, table.published.partial, table.published.unlike) == (
        frozenset({"e1"}),
        True,
        "part_1",
    )
    shape = table.published.shape
    assert (shape.file, shape.columns, shape.parts) == (7, {"id": (1, 500)}, frozenset({8, 9}))
    assert (shape.filled, other.published.shape.filled) == (frozenset({"id"}), frozenset())
    assert (other.columns, other.about, other.published.unlike) == ((), None, "")
    assert counted.about == 0, "it was counted, and has no rows"
    assert (other.published.shape.parts, other.published.shape.columns) == (frozenset(), {})


@pytest.mark.parametrize(
    ("found", "slot"),
    [
        ({"plugin": "pgoutput", "database": "d", "confirmed_flush_lsn": "0/10"}, SlotStanding("pgoutput", "d", 16)),
        ({}, SlotStanding("", "", 0)),
        (
            {"wal_status": "lost"},
            SlotStanding("", "", 0, "its log was removed (max_slot_wal_keep_size)"),
        ),
        ({"invalidation_reason": "idle_timeout", "wal_status": "lost"}, SlotStanding("", "", 0, "idle_timeout")),
        ({"wal_status": "reserved"}, SlotStanding("", "", 0)),
    ],
)
def test_a_slot_that_is_lost_says_why(found: dict[str, str], slot: SlotStanding) -> None:
    """Damage: a source waits for ever for a log that the server has removed."""
    assert statements._slot(found) == slot
