"""The messages of pgoutput, as a real server sent them, and as bytes that are damaged."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import CorruptionError
from strandline.sources.readers.postgres.pgoutput import (
    KEPT,
    Begin,
    Commit,
    DamagedMessage,
    Delete,
    Emitted,
    Identity,
    Insert,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    TypeName,
    Update,
    lsn_number,
    lsn_text,
    parse,
)

RECORDED = [bytes.fromhex(line) for line in (Path(__file__).parent / "recorded.txt").read_text().split()]
"""What PostgreSQL 15 sent of statements that lead to each kind of message; `test_reader.py` uses a live one."""
MESSAGES = [parse(data) for data in RECORDED]


def of(kind):
    """The recorded messages of a kind."""
    return [message for message in MESSAGES if isinstance(message, kind)]


def test_every_kind_of_message_is_read():
    """Damage: a kind of message that a server sends stops a source."""
    kinds = Counter(type(message) for message in MESSAGES)
    assert set(kinds) == {Begin, Commit, Relation, Insert, Update, Delete, Truncate, TypeName, Origin, Emitted}
    assert kinds[Begin] == kinds[Commit]


def test_a_transaction_is_known_by_where_its_commit_begins():
    """Damage: a transaction is taken for another one, and left out or read twice."""
    begun, ended = of(Begin), of(Commit)
    assert [each.commit_lsn for each in begun] == [each.commit_lsn for each in ended]
    assert all(before.end_lsn <= after.commit_lsn for before, after in pairwise(ended))
    assert all(each.commit_lsn < each.end_lsn for each in ended)


def test_a_relation_says_what_its_columns_are():
    """Damage: a value is read as another column's."""
    a, f, i = (next(r for r in of(Relation) if r.name == name) for name in "afi")
    assert a.columns == (
        RelationColumn(True, "id", 23, -1),
        RelationColumn(False, "name", 25, -1),
        RelationColumn(False, "big", 25, -1),
        RelationColumn(False, "m", of(TypeName)[0].oid, -1),
        RelationColumn(False, "n", 1700, 655366),
    )
    assert (a.schema, a.identity, f.identity, i.identity) == (
        "public",
        Identity.DEFAULT,
        Identity.FULL,
        Identity.INDEX,
    )
    assert of(TypeName)[0].name == "mood"


def test_values_are_texts_nulls_or_kept():
    """Damage: NULL becomes an empty text, or a large value that was not sent becomes NULL."""
    first, second = of(Insert)[:2]
    assert first.new == (b"1", b"ann", b"x" * 3000, b"glad", b"1.50")
    assert second.new == (b"2", None, None, None, b"NaN")
    assert of(Update)[0].new == (b"1", "ænn".encode(), KEPT, b"glad", b"1.50")


def test_old_rows_are_keys_or_whole():
    """Damage: the key of a row that moved is not seen, and the row is there twice."""
    plain, moved, moved_kept, full, full_too, by_index = of(Update)
    assert plain.old is None
    assert (moved.old, moved.key) == ((b"2", None, None, None, None), True)
    assert moved_kept.new[2] is KEPT
    assert (
        (full.old, full.key, full.new)
        == ((b"1", b"a"), False, (b"1", b"b"))
        == (
            full_too.old,
            full_too.key,
            full_too.new,
        )
    )
    assert (by_index.old, by_index.key) == ((None, b"1", None), True)
    assert [(each.old, each.key) for each in of(Delete)] == [
        ((b"3", None, None, None, None), True),
        ((b"1", b"b"), False),
        ((None, b"2", None), True),
    ]


def test_a_truncation_names_its_tables():
    """Damage: a truncated table keeps its rows."""
    parent, child = (next(r.oid for r in of(Relation) if r.name == name) for name in ("parent", "child"))
    assert of(Truncate) == [Truncate((parent, child), False, True), Truncate((parent, child), True, False)]


def test_what_is_no_tables_is_read_too():
    """Damage: another application's message stops the source."""
    assert {(each.transactional, each.prefix, each.content) for each in of(Emitted)} == {
        (True, "pre", b"hello"),
        (False, "pre", b"out"),
    }
    assert of(Origin)[0].name == "elsewhere"


@pytest.mark.parametrize("data", RECORDED[::7] + RECORDED[-1:], ids=lambda data: data[:1].decode())
def test_a_message_that_is_cut_off_or_too_long_is_damaged(data):
    """Damage: half a row is read as a row."""
    for end in range(min(len(data), 300)):
        with pytest.raises(DamagedMessage):
            parse(data[:end])
    with pytest.raises(DamagedMessage, match="too many|cannot be read"):
        parse(data + b"\0")


@pytest.mark.fuzz
def test_damaged_bytes_are_an_error_or_another_message():
    """Damage: bytes that were damaged end the process, or are taken for what they are not without an error."""
    chance = random.Random(7)
    for _ in range(20_000):
        data = bytearray(chance.choice(RECORDED)[:400])
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        with suppress(CorruptionError):
            parse(bytes(data))


@given(st.binary(max_size=60))
@example(b"")
@example(b"I\0\0\0\1N\xff\xff")
@example(b"T\xff\xff\xff\xff\0")
@example(b"M\0" + b"\0" * 8 + b"\0\xff\xff\xff\xff")
def test_any_bytes_are_a_message_or_damaged(data):
    """Damage: the parser fails with an error that no caller expects, or takes memory without bound."""
    with suppress(DamagedMessage):
        parse(data)


@given(st.integers(0, 2**64 - 1))
def test_positions_are_written_as_the_server_writes_them(position):
    """Damage: a slot is moved to another position than was meant."""
    assert lsn_number(lsn_text(position)) == position
