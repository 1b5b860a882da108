"""A source of PostgreSQL goes on by what its problem advises.  Over lists, from a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.controller.ways.site import Case, Site, command, take, ways_of

from postgres_server import PostgresDatabase, PostgresServer
from strandline.problem import Way
from strandline.sources.readers.postgres.slot import NO_PUBLICATION, PUBLICATION_DROPPED
from strandline.sources.readers.postgres.statements import DENIED

pytestmark = pytest.mark.server
Do = Callable[[Site], object]


@dataclass
class Bank:
    """A database with a table, and the role that reads it."""

    database: PostgresDatabase

    def __post_init__(self) -> None:
        """Make the table and the role."""
        self.database.run(
            "CREATE TABLE public.t (id INT PRIMARY KEY, v TEXT)",
            "INSERT INTO public.t VALUES (1, 'at first')",
            f"CREATE ROLE {self.role} LOGIN REPLICATION",
            f"GRANT SELECT ON public.t TO {self.role}",
        )

    @property
    def role(self) -> str:
        """Who reads."""
        return f"reader_{self.database.name}"

    def close(self) -> None:
        """Drop the role."""
        self.database.run(f"DROP OWNED BY {self.role}", f"DROP ROLE {self.role}")


def ran(*statements: str) -> Do:
    """Return what runs statements in the database; ``WHO`` is the role that reads."""
    return lambda site: site.upstream.database.run(*(each.replace("WHO", site.upstream.role) for each in statements))


def define(site: Site) -> None:
    """Define the source, a table and a view."""
    options = {**site.upstream.database.options, "user": site.upstream.role, "publication": "p"}
    given = ", ".join(f"{name} = '{value}'" for name, value in options.items())
    site.execute(
        f"CREATE SOURCE bank FROM postgres ({given})",
        "CREATE TABLE a (id INT, v STRING) FROM SOURCE bank (REFERENCE 'public.t')",
        "CREATE MATERIALIZED VIEW v AS SELECT a.id AS id FROM a",
    )


PUBLISH: Final = ran("CREATE PUBLICATION p FOR TABLE public.t")
MORE: Final = ran("INSERT INTO public.t VALUES (2, 'then')")


def published(site: Site) -> None:
    """Have the table published, and define the source."""
    PUBLISH(site)
    define(site)


def in_turn(*each: Do) -> Do:
    """Return what does one after the other."""
    return lambda site: [do(site) for do in each]


def as_advised(site: Site) -> None:
    """Run the statement that the problem advises, word for word."""
    text = site.env.status()["problems"]["bank"]
    site.upstream.database.run(command(text, NO_PUBLICATION.ways[0]))


def all_there(site: Site) -> None:
    """Assert that the view has what the table has, and follows it."""
    ran("INSERT INTO public.t VALUES (9, 'at last')")(site)
    site.clean()
    assert site.rows("v") == site.upstream.database.run("SELECT id FROM public.t ORDER BY id")


CASES: Final = [
    Case(
        DENIED,
        "bank",
        published,
        in_turn(ran("ALTER ROLE WHO NOREPLICATION"), MORE),
        {DENIED.ways[0].what: ran("ALTER ROLE WHO REPLICATION")},
        all_there,
    ),
    Case(
        NO_PUBLICATION,
        "bank",
        lambda _: None,
        define,
        {NO_PUBLICATION.ways[0].what: as_advised},
        all_there,
    ),
    Case(
        PUBLICATION_DROPPED,
        "bank",
        published,
        in_turn(ran("DROP PUBLICATION p"), MORE),
        {PUBLICATION_DROPPED.ways[0].what: PUBLISH},
        all_there,
    ),
]


@pytest.fixture
def bank(postgres_server: PostgresServer) -> Iterator[Bank]:
    """A database with a table."""
    with postgres_server.database() as made, closing(Bank(made)) as found:
        yield found


@pytest.mark.parametrize(("case", "way"), ways_of(CASES))
def test_a_source_of_a_real_server_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an operator who does what the status says has a source that stands still; or neighbours stand, too."""
    site = Site(tmp_path, upstream=bank)
    take(case, way, site, monkeypatch)
    site.env.close()
