"""The part of the log that was read last: what is damaged, what stops a table, and what is forgotten."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import CorruptionError, SourceError, Unavailable
from strandline.sources.readers.postgres import log as log_module
from strandline.sources.readers.postgres.log import Log
from strandline.sources.readers.postgres.pgoutput import DamagedMessage, Identity
from strandline.sources.readers.postgres.tables import Reading, noted
from strandline.testing.postgres.list_postgres import ListDatabase, insert

SCHEMA = Schema((Column("id", "int"), Column("v", "string")))


@pytest.fixture
def database():
    """A database of one table."""
    made = ListDatabase()
    made.create("t", Identity.DEFAULT, id="*integer", v="text")
    return made


def log_of(database, **options):
    """A log that holds nothing yet."""
    reading = Reading("public.t", SCHEMA, noted("public.t", SCHEMA, database.tables["t"]), item="s")
    log = Log([reading], **options)
    log.follow([reading], database.at)
    return log


def messages(database, start=0):
    """All messages of the log from a position on."""
    return [message for written in database.log if written.commit >= start for message in written.messages]


def taken(log, database):
    """The log after a peek of all that is new."""
    take = log.begin()
    take(messages(database, log.upper))
    log.finish(database.at)
    return log


def ids(log, lower, upper):
    """The keys of the changes in a range."""
    return [row["id"] for table in log.changes("public.t", lower, upper) for row in table.to_pylist()]


def test_a_truncation_stops_the_table_there_and_not_before(database):
    """Damage: rows that upstream removed stay, or a table cannot be read at all."""
    log = log_of(database)
    first = database.commit(insert("t", (b"1", b"a")))
    second = database.commit(insert("t", (b"2", b"a")))
    last = database.log[-1]
    truncate = b"T" + struct.pack(">IBI", 1, 0, 0)
    database.log[-1] = type(last)(last.commit, last.end, (*last.messages[:-1], truncate, last.messages[-1]), {})
    taken(log, database)
    assert ids(log, first, second) == [1]
    with pytest.raises(SourceError, match="cannot be read beyond 0/[0-9A-F]+: all its rows were removed by TRUNCATE"):
        ids(log, first, database.at)
    log.forget(database.at)
    assert ids(log, database.at, database.at) == []


def test_a_transaction_that_ends_with_anothers_commit_is_damaged(database):
    """Damage: changes of one transaction are taken for those of another."""
    log = log_of(database)
    for n in range(2):
        database.commit(insert("t", (str(n).encode(), b"a")))
    sent = messages(database)
    take = log.begin()
    with pytest.raises(DamagedMessage, match="is not that of its transaction"):
        take([*sent[:3], sent[-1]])
    log.abandon()
    with pytest.raises(CorruptionError):
        log.begin()([b""])


def test_a_transaction_that_comes_again_is_refused(database):
    """Damage: a server sends what was read already, and a row is there twice."""
    log, start = log_of(database), database.at
    database.commit(insert("t", (b"1", b"a")))
    taken(log, database)
    end = database.at
    database.commit(insert("t", (b"2", b"a")))
    with pytest.raises(DamagedMessage, match="came again"):
        log.begin()(messages(database))
    log.abandon()
    assert ids(log, start, end) == [1]
    assert ids(taken(log, database), start, database.at) == [1, 2]


def test_a_table_that_is_not_ours_is_passed_over(database):
    """Damage: a publication with more tables than are read stops the source."""
    log = log_of(database)
    start = database.at
    database.create("other", Identity.DEFAULT, id="*integer", v="text")
    database.commit(insert("other", (b"9", b"a")), insert("t", (b"1", b"a")))
    assert ids(taken(log, database), start, database.at) == [1]


def test_files_go_with_what_is_forgotten(database):
    """Damage: a full disk."""
    log = log_of(database, held_bytes_max=1)
    start = database.at
    for n in range(3):
        database.commit(insert("t", (str(n).encode(), b"a")))
        taken(log, database)
    directory = log._directory.name
    assert ids(log, start, database.at) == [0, 1, 2]
    log.forget(database.log[2].commit)
    assert ids(log, log.lower, database.at) == [2]
    assert len(list(Path(directory).iterdir())) == 1
    log.close()
    assert not Path(directory).exists()


def held(log):
    """How many bytes a log holds in memory: of changes that are no chunk yet, and of chunks."""
    pending = (text for each in log._pending.values() for change in each.changes for text in change.texts)
    chunks = (chunk.held for those in log._chunks.values() for chunk in those)
    return sum(map(len, filter(None, pending))) + sum(each.nbytes for each in chunks if isinstance(each, pa.Table))


@pytest.mark.parametrize("tables", [1, 3])
def test_one_transaction_of_large_rows_is_not_held_in_memory(database, monkeypatch, tables):
    """Damage: 5 000 rows of a megabyte are in memory at once, because they are fewer than a chunk has."""
    monkeypatch.setattr(log_module, "CHUNK_BYTES", 4_000)
    names = [f"t{n}" for n in range(tables)]
    for name in names:
        database.create(name, Identity.DEFAULT, id="*integer", v="text")
    readings = [
        Reading(f"public.{name}", SCHEMA, noted(name, SCHEMA, database.tables[name]), item="s") for name in names
    ]
    log, start = Log(readings, held_bytes_max=10_000), database.at
    log.follow(readings, start)
    rows = [(str(n).encode(), bytes([97 + n % 26]) * (6_000 if n == 77 else 500)) for n in range(200)]
    database.commit(*(insert(names[n % tables], row) for n, row in enumerate(rows)))
    take, most = log.begin(), 0
    for message in messages(database):
        take([message])
        most = max(most, held(log))
    log.finish(database.at)
    assert 10_000 <= most <= 10_000 + 4_000 + 6_000, "what is kept, what is no chunk yet, and a row that is larger"
    found = [
        (str(row["id"]).encode(), row["v"].encode())
        for name in names
        for table in log.changes(f"public.{name}", start, database.at)
        for row in table.to_pylist()
    ]
    assert sorted(found) == sorted(rows)
    assert all(
        table.nbytes <= 4_000 + 6_000 + 2_000
        for name in names
        for table in log.changes(f"public.{name}", start, database.at)
    )
    log.close()


def test_few_changes_of_many_bytes_have_an_extent_that_says_so(database):
    """Damage: a few rows of many megabytes are collected in one process, as if they were small."""
    log, start = log_of(database), database.at
    database.commit(insert("t", (b"1", b"a" * 5_000)))
    middle = database.at
    taken(log, database)
    database.commit(insert("t", (b"2", b"a")))
    taken(log, database)
    changes, size = log.extent(start, database.at)
    assert (changes, log.extent(middle, database.at)[0]) == (2, 1)
    assert size > 5_000 > log.extent(middle, database.at)[1]
    assert log.extent(database.at, database.at + 1) == (0, 0)


def test_a_peek_that_was_finished_adds_nothing_afterwards(database):
    """Damage: the thread of an earlier peek adds its changes once more."""
    log, start = log_of(database), database.at
    database.commit(insert("t", (b"1", b"a")))
    take = log.begin()
    take(messages(database))
    log.finish(database.at)
    database.commit(insert("t", (b"2", b"a")))
    with pytest.raises(Unavailable, match="was given up"):
        take(messages(database))
    assert ids(taken(log, database), start, database.at) == [1, 2]


def test_a_peek_that_cannot_be_put_aside_is_forgotten(database, monkeypatch):
    """Damage: the disk is full for a moment, and the changes of a peek are there twice afterwards."""
    log, start = log_of(database, held_bytes_max=0), database.at
    database.commit(insert("t", (b"1", b"a")))
    with monkeypatch.context() as patched, pytest.raises(Unavailable, match="put aside"):
        patched.setattr(pa.ipc, "new_file", Mock(side_effect=OSError("no space left on device")))
        taken(log, database)
    assert ids(taken(log, database), start, database.at) == [1]
    log.close()
