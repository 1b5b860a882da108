"""A source of Kafka that stops goes on by each way out that its problem names.  Over lists, with a topic there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.controller.ways.site import Case, Site, take, ways_of

from strandline.options import understood
from strandline.problem import Way
from strandline.sources.reader import Surroundings
from strandline.sources.readers.kafka.broker import Beginnings
from strandline.sources.readers.kafka.options import KafkaOptions
from strandline.sources.readers.kafka.reader import FORGOTTEN, LOST, NO_TOPIC, OTHER_TOPIC, KafkaReader
from strandline.store.memory import MemoryBlob
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.upstreams.memory_broker import MemoryBroker, MemoryTopic
from strandline.testing.upstreams.number_messages import NumberDecoder

OPTIONS: Final = {"servers": "k:9092", "topic": "t", "format": "text"}
DEFINITION: Final = (
    "CREATE SOURCE k (n BIGINT, part STRING, at BIGINT) FROM kafka (servers = 'k:9092', topic = 't', format = 'json')"
)


@dataclass
class Topic:
    """A topic with two numbers, and readers of it."""

    there: MemoryTopic = field(default_factory=MemoryTopic)

    def __post_init__(self) -> None:
        self.there.produce(0, b"1", b"2")

    async def reader(self, given: Surroundings) -> KafkaReader:
        """Open a reader."""
        options = understood("source 'k'", KafkaOptions, OPTIONS)
        beginnings = await Beginnings.open(await given.progress(), given.epoch)
        broker, decoder, engine = MemoryBroker(self.there), NumberDecoder(), ListEngine(MemoryBlob())
        have = (given.clock, broker, beginnings, None, engine, decoder, given.schema, options, options.decoding)
        return KafkaReader(*have, name=given.name)


def harmed(harm: Callable[[MemoryTopic], object]) -> Callable[[Site], object]:
    """Return what harms the topic of a site."""
    return lambda site: harm(site.upstream.there)


def begin(site: Site) -> None:
    """Define the source, a view over it, and an endpoint of that."""
    site.execute(DEFINITION)
    begin_view(site)


def drop(topic: MemoryTopic) -> None:
    """Drop the topic."""
    topic.id = None


def create(site: Site) -> None:
    """Have the topic there again: a cluster that had not known of it."""
    site.upstream.there.id = "topic-1"


def elsewhere(site: Site) -> None:
    """Define the source with the right options."""
    create(site)
    site.execute("DROP MATERIALIZATION out", "DROP MATERIALIZED VIEW v", "DROP SOURCE k", DEFINITION)
    begin_view(site)


def begin_view(site: Site) -> None:
    """Define the view, and its endpoint."""
    site.execute(
        "CREATE MATERIALIZED VIEW v AS SELECT k.n AS n FROM k",
        f"CREATE MATERIALIZATION out INTO sqlite OPTIONS (path '{site.root}/out.db') AS v KEY (n)",
    )


def forget(topic: MemoryTopic) -> None:
    """Have messages come, and go before they are read."""
    topic.produce(0, b"3", b"4", b"5")
    topic.forget(0, 4)


def read_again(*numbers: int) -> Callable[[Site], None]:
    """Return what asserts that view and source hold what the topic holds now, and what comes."""

    def then(site: Site) -> None:
        site.upstream.there.produce(0, b"10")
        site.clean()
        assert site.rows("v") == [(n,) for n in (*numbers, 10)]
        with closing(sqlite3.connect(site.root / "out.db")) as connection:
            assert connection.execute("SELECT n FROM v ORDER BY n").fetchall() == site.rows("v")

    return then


CASES: Final = [
    Case(
        NO_TOPIC,
        "k",
        begin,
        harmed(drop),
        {NO_TOPIC.ways[0].what: create, NO_TOPIC.ways[1].what: elsewhere},
        read_again(1, 2),
    ),
    Case(OTHER_TOPIC, "k", begin, harmed(MemoryTopic.make_anew), then=read_again()),
    Case(FORGOTTEN, "k", begin, harmed(forget), then=read_again(5)),
    Case(LOST, "k", begin, harmed(lambda topic: topic.lose(0, 1)), then=read_again(1)),
]


@pytest.mark.parametrize(("case", "way"), ways_of(CASES))
def test_a_source_of_kafka_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a topic that lost messages costs all views and endpoints above it, by hand; or neighbours stand, too."""
    topic = Topic()
    site = Site(tmp_path, doubles={"kafka": topic.reader}, upstream=topic)
    take(case, way, site, monkeypatch)
    site.env.close()
