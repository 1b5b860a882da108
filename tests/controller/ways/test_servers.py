"""A materialization into a server that refuses goes on by what its problem advises.  Over lists, into real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from tests.controller.ways.servers import Kafka, MariaDB, Postgres, Redis
from tests.controller.ways.site import Case, Site, take, ways_of

import kafka_server as kafka
import mariadb_server as mariadb
import redis_server as redis
from postgres_server import PostgresServer
from strandline.materialize.protocol.holds import LONG_KEY, UNHELD
from strandline.materialize.protocol.refusals import DENIED, FILLED_THERE, LOST, OPTION_REFUSED, OTHER_KIND, UNSUITED
from strandline.problem import Way

pytestmark = pytest.mark.server
OUT: Final = "m"
NUMBERS: Final = count(700)
"""Databases of Redis that no other test takes."""
Do = Callable[[Site], object]


# --- what is done ----------------------------------------------------------------------------------------------------
def into(site: Site, user: str = "first", to: str = "o", key: str = "k") -> None:
    """Define the materialization, after one of its name was dropped."""
    if OUT in site.core.catalog.items:
        site.execute(f"DROP MATERIALIZATION {OUT}")
    site.execute(f"CREATE MATERIALIZATION {OUT} INTO {site.upstream.options(user)} AS w TO {to} KEY ({key})")


def undefined(site: Site) -> None:
    """Define a table with a row, and no endpoint yet."""
    site.execute("CREATE TABLE w (k BIGINT, x BIGINT)")
    write(site, 1)


def begin(site: Site) -> None:
    """Define a table with a row, and its endpoint."""
    undefined(site)
    into(site)


def write(site: Site, key: int) -> None:
    """Write a row into the table."""
    site.env.insert("w", [{"k": key, "x": 0}])


def shut_out(site: Site) -> None:
    """Let the user in no longer, and have a row come."""
    site.upstream.shut_out()
    write(site, 3)


def let_in(site: Site) -> None:
    """Let the user in again."""
    site.upstream.let_in()


def corrected(site: Site) -> None:
    """Correct the password where the option refers to it, and start again."""
    (site.upstream.path / "first").write_text("another")
    site.reopen()


def other_user(site: Site) -> None:
    """Define the materialization with another user."""
    into(site, "other")


def other_name(site: Site) -> None:
    """Define the materialization with another name for the table."""
    into(site, to="p")


def equal(site: Site) -> None:
    """Assert that the endpoint equals its collection, and follows it."""
    write(site, 9)
    site.clean()
    assert site.upstream.rows() == site.rows("w")


def ran(*commands: tuple[str, ...]) -> Do:
    """Return what runs commands in Redis."""
    return lambda site: [site.upstream.run(*each) for each in commands]


def evicting(site: Site) -> None:
    """Have the server drop keys when its memory is full."""
    ran(("CONFIG", "SET", "maxmemory", "1gb"), ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"))(site)
    site.reopen()


def emptied(site: Site) -> None:
    """Have an operator empty the database."""
    site.upstream.run("FLUSHDB")
    write(site, 3)


def other_kind(site: Site) -> None:
    """Have another program write a text where a row is to be."""
    site.upstream.run("SET", "o:3", "three")
    write(site, 3)


def filled_again(site: Site) -> None:
    """Delete the key, and fill the materialization again."""
    site.upstream.run("DEL", "o:3")
    site.env.backfill(OUT, apply=True)


def foreign(site: Site) -> None:
    """Have another program's key there where the endpoint's keys are to be."""
    site.upstream.run("SET", "o:7", "seven")
    into(site)


def elsewhere(site: Site) -> None:
    """Have a materialization of the same name of another location fill the keys."""
    other = Site(site.root, upstream=site.upstream, processes="q")
    begin(other)
    other.clean()
    other.env.close()
    into(site)


def texts(site: Site) -> None:
    """Define a table of texts, and its endpoint."""
    site.execute("CREATE TABLE w (k STRING, x STRING)")
    site.env.insert("w", [{"k": "a", "x": "b"}])
    into(site)


def nul(site: Site) -> None:
    """Have a text come that the endpoint cannot hold."""
    site.env.insert("w", [{"k": "c", "x": "\0"}])


def no_nul(site: Site) -> None:
    """Take the row out."""
    site.env.delete("w", [{"k": "c", "x": "\0"}])


def long(site: Site) -> None:
    """Have a key come that is too long for the endpoint."""
    site.env.insert("w", [{"k": "c" * 9_000, "x": "d"}])


def short(site: Site) -> None:
    """Take the row out."""
    site.env.delete("w", [{"k": "c" * 9_000, "x": "d"}])


DENIALS: Final = {way.what: do for way, do in zip(DENIED.ways, (let_in, corrected, other_user), strict=True)}
PASSWORD: Final = DENIED.ways[1]
LOGINS: Final = [Case(DENIED, OUT, begin, shut_out, DENIALS, equal)]
POSTGRES: Final = [
    Case(UNHELD, OUT, texts, nul, {UNHELD.ways[0].what: no_nul}),
    Case(LONG_KEY, OUT, texts, long, {LONG_KEY.ways[0].what: short}),
]
REDIS: Final = [
    Case(LOST, OUT, begin, emptied, then=equal),
    Case(
        UNSUITED,
        OUT,
        begin,
        evicting,
        {
            UNSUITED.ways[0].what: ran(("CONFIG", "SET", "maxmemory-policy", "noeviction")),
            UNSUITED.ways[1].what: ran(("CONFIG", "SET", "maxmemory-policy", "noeviction")),
        },
        equal,
    ),
    Case(
        OTHER_KIND,
        OUT,
        begin,
        other_kind,
        {way.what: do for way, do in zip(OTHER_KIND.ways, (filled_again, other_name), strict=True)},
    ),
    Case(
        FILLED_THERE,
        OUT,
        undefined,
        foreign,
        {FILLED_THERE.ways[0].what: ran(("DEL", "o:7")), FILLED_THERE.ways[1].what: other_name},
    ),
    Case(
        FILLED_THERE,
        OUT,
        undefined,
        elsewhere,
        {
            FILLED_THERE.ways[0].what: ran(("DEL", "o:1"), ("HDEL", "strandline:owners", "o")),
            FILLED_THERE.ways[1].what: other_name,
        },
    ),
]


def too_many(site: Site) -> None:
    """Define the materialization with more replicas than there are brokers."""
    into(site, to=f"o_{site.upstream.number}")


def fewer(site: Site) -> None:
    """Define it with as many as there are."""
    into(site, "other", to=f"o_{site.upstream.number}")


KAFKA: Final = [Case(OPTION_REFUSED, OUT, undefined, too_many, {OPTION_REFUSED.ways[0].what: fewer})]
CASES: Final = [*LOGINS, *POSTGRES, *REDIS, *KAFKA]


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Postgres]:
    """A database of PostgreSQL."""
    with postgres_server.database() as made, closing(Postgres(made)) as database:
        yield database


@pytest.fixture
def maria(mariadb_server: mariadb.MariaDBServer, tmp_path: Path) -> Iterator[MariaDB]:
    """A database of MariaDB."""
    with mariadb_server.database() as name, closing(MariaDB(mariadb_server, name, tmp_path)) as database:
        yield database


@pytest.fixture
def redis_database(redis_server: redis.RedisServer, tmp_path: Path) -> Iterator[Redis]:
    """A database of Redis."""
    with closing(Redis(redis_server, next(NUMBERS), tmp_path)) as database:
        yield database


def goes_on(server: Any, case: Case, way: Way, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cause a problem, and take a way out of it."""
    site = Site(root, upstream=server)
    take(case, way, site, monkeypatch)
    site.env.close()


@pytest.mark.parametrize(
    ("case", "way"),
    [each for each in ways_of([*LOGINS, *POSTGRES]) if PASSWORD not in each.values],  # the server wants no password
)
def test_an_endpoint_in_postgresql_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a value or a login that PostgreSQL refuses stops a materialization for ever; or neighbours, too."""
    goes_on(postgres, case, way, tmp_path, monkeypatch)


@pytest.mark.parametrize(("case", "way"), ways_of(LOGINS))
def test_an_endpoint_in_mariadb_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, maria: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a wrong password stops a materialization for ever; or neighbours, too."""
    goes_on(maria, case, way, tmp_path, monkeypatch)


@pytest.mark.parametrize(("case", "way"), ways_of([*LOGINS, *REDIS]))
def test_an_endpoint_in_redis_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, redis_database: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a wrong password, or a server that lost rows, stops a materialization for ever; or neighbours, too."""
    goes_on(redis_database, case, way, tmp_path, monkeypatch)


@pytest.mark.parametrize(("case", "way"), ways_of(KAFKA))
def test_an_endpoint_in_kafka_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, kafka_server: kafka.KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an option that the brokers refuse stops a materialization for ever; or neighbours, too."""
    goes_on(Kafka(kafka_server, next(NUMBERS)), case, way, tmp_path, monkeypatch)
