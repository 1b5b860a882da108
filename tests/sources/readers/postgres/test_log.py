"""The part of the log that was read last: what is damaged, what stops a table, and what is forgotten."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import CorruptionError, SourceError, Unavailable
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
    reading = Reading("public.t", SCHEMA, noted("public.t", SCHEMA, database.tables["t"]))
    log = Log([reading], **options)
    log.follow([reading], database.at)
    return log


def messages(database):
    """All messages of the log."""
    return [message for written in database.log for message in written.messages]


def taken(log, database):
    """The log after a peek of all that there is."""
    take = log.begin()
    take(messages(database))
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


def test_what_is_known_is_not_decoded_again(database):
    """Damage: a peek costs what the slot holds, and not what is new."""
    log = log_of(database)
    start = database.at
    database.commit(insert("t", (b"1", b"a")))
    taken(log, database)
    database.commit(insert("t", (b"2", b"a")))
    known = len(database.log[0].messages)
    damaged = messages(database)
    damaged[2] = b"I damaged, and not looked at"
    take = log.begin()
    take(damaged)
    log.finish(database.at)
    assert known == 4
    assert ids(log, start, database.at) == [1, 2]


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
