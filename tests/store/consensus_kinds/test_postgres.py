"""PostgreSQL keeps the contract, across processes too, and says honestly what a failure means."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from postgres_server import HOSTILE, PostgresServer
from strandline.errors import ConfigError, CorruptionError, Determinate, Indeterminate, StoreError, Unavailable
from strandline.store.consensus_kinds.postgres import COMMIT_REFUSED, PostgresConsensus
from strandline.store.protocols import Committed, Mismatch, Versioned
from strandline.testing.contracts.consensus_contract import (
    ConsensusContract,
    OpenConsensus,
    SharedConsensusContract,
    fill,
    step,
)

pytestmark = pytest.mark.server
SCHEMAS = itertools.count()
PATIENCE_S = 120.0


@pytest.fixture
def schema() -> str:
    """Return a schema that no other test has, of a name that wants quoting, and that LATIN1 cannot write."""
    return f'Test ∞ {os.getpid()} "{next(SCHEMAS)}"'


@pytest.fixture
def open_consensus(postgres_server: PostgresServer, schema: str) -> Iterator[Callable[..., PostgresConsensus]]:
    """Open handles to one table, in sessions whose settings are hostile, and close them all in the end."""
    opened: list[PostgresConsensus] = []
    settings = "".join(f" -c{name}={value.replace(' ', '')}" for name, value in HOSTILE.items())

    def open_one(**options: Any) -> PostgresConsensus:
        place = f"{postgres_server.url}?options={quote(settings)}"
        opened.append(PostgresConsensus(place, schema=schema, **{"seconds_max": PATIENCE_S, **options}))
        return opened[-1]

    yield open_one
    for consensus in opened:
        consensus.close()


class TestPostgresConsensus(ConsensusContract):
    @pytest.fixture
    def open_consensus(self, open_consensus: OpenConsensus) -> OpenConsensus:
        return open_consensus


class TestSharedPostgresConsensus(SharedConsensusContract):
    @pytest.fixture
    def open_consensus(self, open_consensus: OpenConsensus) -> OpenConsensus:
        return open_consensus


def test_the_socket_serves_as_well_as_the_port(postgres_server: PostgresServer, schema: str) -> None:
    """Damage: a server that listens on no port cannot be used."""
    consensus = PostgresConsensus(postgres_server.socket_url, schema=schema)
    assert asyncio.run(consensus.compare_and_set(step("k", None))) == Committed()
    consensus.close()


def test_schemas_and_tables_are_separate_places(postgres_server: PostgresServer, schema: str) -> None:
    """Damage: two locations in one database commit over each other."""
    places = [{"schema": schema}, {"schema": schema, "table": 'an"other'}, {"schema": schema + "'"}]
    for place in places:
        consensus = PostgresConsensus(postgres_server.url, **place)
        assert asyncio.run(consensus.list_keys()) == []
        assert asyncio.run(consensus.compare_and_set(step("k", None))) == Committed()
        consensus.close()


def test_many_handles_may_make_the_table_at_once(open_consensus: Callable[..., PostgresConsensus]) -> None:
    """Damage: of the processes that start together, some fail because the others are creating the table."""
    with ThreadPoolExecutor(8) as pool:
        handles = [future.result() for future in [pool.submit(open_consensus) for _ in range(8)]]
    assert [asyncio.run(handle.list_keys()) for handle in handles] == [[]] * 8


def test_a_table_of_just_now_is_seen_with_its_comment_or_not_at_all(
    postgres_server: PostgresServer, open_consensus: Callable[..., PostgresConsensus]
) -> None:
    """Damage: a process that starts beside another one ends, since the table seems to be of another application."""
    with psycopg.connect(postgres_server.url) as before, psycopg.connect(postgres_server.url) as after:
        before.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        before.execute("SELECT 1 FROM pg_class LIMIT 1")  # what it sees is as it is now
        made = open_consensus()
        assert not made._is_ours(before)
        assert made._is_ours(after)


def test_a_successor_is_never_born_without_its_witness(
    postgres_server: PostgresServer, schema: str, open_consensus: Callable[..., PostgresConsensus]
) -> None:
    """Damage: truncation removes the witness under a writer, which then writes an old seqno anew."""
    consensus, stale = open_consensus(), open_consensus()
    asyncio.run(fill(consensus, "k", 1, 5))
    other = psycopg.connect(postgres_server.url, autocommit=True)
    table = psycopg.sql.Identifier(schema, "versions")
    other.execute("BEGIN")  # the stale writer waits for this transaction in the middle of its compare-and-set
    other.execute(psycopg.sql.SQL("DELETE FROM {} WHERE seqno < 5").format(table))
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(lambda: asyncio.run(stale.compare_and_set(step("k", 3, b"stale"))))
        waits_for_a_lock(postgres_server)
        other.execute("COMMIT")
        assert outcome.result() == Mismatch()
    other.close()
    assert asyncio.run(consensus.scan("k", 0, 9)) == [Versioned(5, b"5")]


def test_two_first_versions_of_one_key_are_one(
    postgres_server: PostgresServer, schema: str, open_consensus: Callable[..., PostgresConsensus]
) -> None:
    """Damage: a shard is created twice, at two seqnos, and each writer uses its own."""
    one, other = open_consensus(), open_consensus()
    for number in range(20):
        barrier = threading.Barrier(2)

        def beget(
            consensus: PostgresConsensus, first: int, n: int = number, met: threading.Barrier = barrier
        ) -> object:
            met.wait()
            return asyncio.run(consensus.compare_and_set(step(f"k{n}", None, b"", first)))

        with ThreadPoolExecutor(2) as pool:
            outcomes = [pool.submit(beget, one, 0), pool.submit(beget, other, 7)]
            assert sorted([each.result() for each in outcomes], key=repr) == [Committed(), Mismatch()]


def waits_for_a_lock(server: PostgresServer) -> None:
    """Return when some transaction waits for another."""
    with psycopg.connect(server.url, autocommit=True) as watcher:
        while watcher.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
            pass


def test_a_lock_that_is_not_had_in_time_is_determinate(
    postgres_server: PostgresServer, schema: str, open_consensus: Callable[..., PostgresConsensus]
) -> None:
    """Damage: an operator's forgotten transaction blocks an append for ever."""
    patient, consensus = open_consensus(), open_consensus(seconds_max=1)
    asyncio.run(fill(patient, "k", 1, 1))
    with psycopg.connect(postgres_server.url) as other:
        other.execute(psycopg.sql.SQL("LOCK TABLE {}").format(psycopg.sql.Identifier(schema, "versions")))
        with pytest.raises(Determinate, match="57014"):
            asyncio.run(consensus.compare_and_set(step("k", 1)))
        with pytest.raises(Determinate, match="57014"):
            asyncio.run(consensus.head("k"))
        other.rollback()
    assert asyncio.run(patient.compare_and_set(step("k", 1))) == Committed()


class FailingConnection:
    """A connection whose statement that starts with ``verb`` fails with ``error``, before or after it took effect."""

    def __init__(self, inner: psycopg.Connection[Any], verb: str, error: psycopg.Error, after: bool = False) -> None:
        self._inner, self._verb, self._error, self._after = inner, verb, error, after

    def execute(self, statement: Any, values: Any = None) -> Any:
        text = statement if isinstance(statement, str) else statement.as_string(self._inner)
        if text.strip().startswith(self._verb):
            if self._after:
                self._inner.execute(statement, values)
            raise self._error
        return self._inner.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def plant(consensus: PostgresConsensus, verb: str, error: psycopg.Error, after: bool = False) -> None:
    """Replace the handle's connection by a `FailingConnection`."""
    consensus._connection = FailingConnection(consensus._connected(), verb, error, after)  # type: ignore[assignment]


@pytest.mark.parametrize("verb", ["BEGIN", "WITH"])
@pytest.mark.parametrize("error", [psycopg.errors.ConnectionFailure("cut"), psycopg.errors.DiskFull("full")])
def test_a_failure_before_the_commit_is_determinate_and_is_rolled_back(
    open_consensus: Callable[..., PostgresConsensus], verb: str, error: psycopg.Error
) -> None:
    """Damage: a caller looks for a witness that cannot exist; or the next commit includes half of a transaction."""
    consensus = open_consensus()
    asyncio.run(fill(consensus, "k", 1, 1))
    plant(consensus, verb, error, after=verb == "WITH")
    with pytest.raises(Determinate):
        asyncio.run(consensus.compare_and_set(step("k", 1, b"lost")))
    assert asyncio.run(consensus.head("k")) == Versioned(1, b"1")
    assert asyncio.run(consensus.compare_and_set(step("k", 1, b"kept"))) == Committed()


@pytest.mark.parametrize("state", [*COMMIT_REFUSED, "40003", "57P01", "57014", "08006", "53100", "XX000", None])
@pytest.mark.parametrize("after", [False, True])
def test_only_what_the_server_calls_a_rollback_is_a_commit_that_did_not_happen(
    open_consensus: Callable[..., PostgresConsensus], state: str | None, after: bool
) -> None:
    """Damage: a commit that happened is reported as "did not happen", and its parts are deleted."""

    class Reported(psycopg.OperationalError):
        sqlstate = state

    consensus = open_consensus()
    plant(consensus, "COMMIT", Reported("reported"), after)
    expected: type[StoreError] = Determinate if state in COMMIT_REFUSED else Indeterminate
    with pytest.raises(expected):
        asyncio.run(consensus.compare_and_set(step("k", None, b"perhaps")))
    assert (asyncio.run(consensus.head("k")) is not None) is after
    assert asyncio.run(consensus.compare_and_set(step("k", 0 if after else None))) == Committed()


def test_a_connection_that_the_server_ended_is_opened_again(
    postgres_server: PostgresServer, open_consensus: Callable[..., PostgresConsensus]
) -> None:
    """Damage: after the database was restarted, every process must be restarted too."""
    consensus = open_consensus()
    asyncio.run(fill(consensus, "k", 1, 1))
    for call in (lambda: consensus.head("k"), lambda: consensus.compare_and_set(step("k", 1, b"next"))):
        with psycopg.connect(postgres_server.url, autocommit=True) as killer:
            killer.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE application_name = 'strandline' AND pid <> pg_backend_pid()"
            )
        asyncio.run(call())
    assert asyncio.run(consensus.head("k")) == Versioned(2, b"next")


def test_a_batch_of_commits_is_one_transaction(open_consensus: Callable[..., PostgresConsensus]) -> None:
    """Damage: a tick over 200 idle shards waits for 200 flushes."""
    consensus = open_consensus()
    keys = [f"k{n}" for n in range(200)]
    assert asyncio.run(consensus.compare_and_set_many([step(key, None) for key in keys])) == [Committed()] * 200
    inserted = [
        consensus._connected().execute(consensus._composed("SELECT DISTINCT xmin FROM {table}")).fetchall(),
    ]
    assert [len(rows) for rows in inserted] == [1]
    assert asyncio.run(consensus.compare_and_set_many([step(key, 0) for key in keys])) == [Committed()] * 200
    assert asyncio.run(consensus.compare_and_set_many([step(key, 0) for key in keys])) == [Mismatch()] * 200


def test_commits_are_durable_whatever_the_servers_default(postgres_server: PostgresServer, schema: str) -> None:
    """Damage: an acknowledged commit is lost in a power cut because an operator made the database fast."""
    hasty = f"{postgres_server.url}?options=-csynchronous_commit%3Doff"
    consensus = PostgresConsensus(hasty, schema=schema)
    assert consensus._connected().execute("SHOW synchronous_commit").fetchone() == ("on",)
    consensus.close()
    careful = f"{postgres_server.url}?options=-csynchronous_commit%3Dremote_apply"
    consensus = PostgresConsensus(careful, schema=schema)
    assert consensus._connected().execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)
    consensus.close()


def test_what_was_committed_is_there_after_the_server_lost_its_power(
    postgres_server: PostgresServer, open_consensus: Callable[..., PostgresConsensus]
) -> None:
    """Damage: an acknowledged commit is forgotten by the database's recovery."""
    consensus = open_consensus()
    versions = asyncio.run(fill(consensus, "k", 1, 20))
    postgres_server.stop("immediate")
    with pytest.raises(Determinate):
        asyncio.run(consensus.head("k"))
    postgres_server.start()
    assert asyncio.run(consensus.scan("k", 0, 100)) == versions
    assert asyncio.run(consensus.compare_and_set(step("k", 20))) == Committed()


def test_a_server_that_hangs_is_given_up_and_what_it_may_have_done_is_not_known(
    postgres_server: PostgresServer, open_consensus: Callable[..., PostgresConsensus]
) -> None:
    """Damage: a server that hangs blocks every process that is connected to it."""
    patient, consensus = open_consensus(), open_consensus(seconds_max=1)
    asyncio.run(fill(patient, "k", 1, 1))
    connection = consensus._connected()

    class FrozenAtCommit(FailingConnection):
        def execute(self, statement: Any, values: Any = None) -> Any:
            if statement == "COMMIT":
                postgres_server.freeze()
            return self._inner.execute(statement, values)

    consensus._connection = FrozenAtCommit(connection, "", psycopg.Error())  # type: ignore[assignment]
    try:
        with pytest.raises(Indeterminate, match="timeout"):
            asyncio.run(consensus.compare_and_set(step("k", 1, b"perhaps")))
    finally:
        postgres_server.thaw()
    wanted = [step("k", 1), step("k", 2)]
    # What is in doubt may land between the two requests of one call, which then sees neither head; not in two calls.
    committed = asyncio.run(patient.compare_and_set_many(wanted)).count(Committed())
    assert committed == 1 or asyncio.run(patient.compare_and_set_many(wanted)).count(Committed()) == 1


def test_a_table_of_another_application_is_refused_by_name(postgres_server: PostgresServer, schema: str) -> None:
    """Damage: Strandline writes to a table of another application, or of a later version."""
    with psycopg.connect(postgres_server.url, autocommit=True) as other:
        other.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(schema)))
        other.execute(psycopg.sql.SQL("CREATE TABLE {} (k int)").format(psycopg.sql.Identifier(schema, "versions")))
        with pytest.raises(ConfigError, match="no comment"):
            PostgresConsensus(postgres_server.url, schema=schema)
        comment = psycopg.sql.SQL("COMMENT ON TABLE {} IS 'Strandline''s versions, format 99'")
        other.execute(comment.format(psycopg.sql.Identifier(schema, "versions")))
        with pytest.raises(ConfigError, match="format 99"):
            PostgresConsensus(postgres_server.url, schema=schema)


def test_an_existing_table_that_is_missing_is_not_created(postgres_server: PostgresServer, schema: str) -> None:
    """Damage: a mistyped schema becomes an empty location, which looks healthy."""
    with pytest.raises(ConfigError, match="nothing was stored there yet"):
        PostgresConsensus(postgres_server.url, schema=schema, existing=True)
    with psycopg.connect(postgres_server.url, autocommit=True) as other:
        found = other.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
    assert found == (0,)
    PostgresConsensus(postgres_server.url, schema=schema).close()
    given = f"{postgres_server.url}{'&' if '?' in postgres_server.url else '?'}"
    read_only = f"{given}options=-c%20default_transaction_read_only%3Don&target_session_attrs=any"
    opened = PostgresConsensus(read_only, schema=schema, existing=True)
    assert asyncio.run(opened.list_keys()) == []
    opened.close()


@pytest.mark.parametrize("name", ["", "x" * 64, "é" * 32, "a\0b"])
def test_names_that_postgresql_would_cut_off_are_refused(postgres_server: PostgresServer, name: str) -> None:
    """Damage: two locations whose long names have one prefix share one table."""
    with pytest.raises(ConfigError):
        PostgresConsensus(postgres_server.url, schema=name)
    with pytest.raises(ConfigError):
        PostgresConsensus(postgres_server.url, table=name)


def test_a_rejected_login_is_named_and_no_error_shows_a_password(postgres_server: PostgresServer) -> None:
    """Damage: a password lands in a log."""
    url = postgres_server.url.replace("strandline@", "strandline:hunter2@")
    wrong = [
        (url.replace("/postgres", "/absent"), Unavailable, '"absent" does not exist'),
        (url.replace("strandline:", "nobody-of-that-name:"), Unavailable, "nobody-of-that-name"),
        (url.replace(f":{postgres_server.port}", ":1"), Unavailable, "did not answer"),
        (url + "?hunter2", ConfigError, "cannot be read"),
        ("host=127.0.0.1 password=hunter2 hunter2", ConfigError, "cannot be read"),
    ]
    for text, error, words in wrong:
        with pytest.raises(error, match=words) as raised:
            PostgresConsensus(text)
        chain: BaseException | None = raised.value
        while chain is not None:
            assert "hunter2" not in str(chain)
            chain = chain.__cause__
    consensus = PostgresConsensus(url)
    assert "hunter2" not in repr(consensus)
    plant(consensus, "SELECT", psycopg.errors.DataCorrupted("rotten"))
    with pytest.raises(CorruptionError) as rotten:
        asyncio.run(consensus.head("k"))
    assert "hunter2" not in str(rotten.value)
    consensus.close()
