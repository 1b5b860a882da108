"""What an operator has acknowledged, and what ends that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from strandline.controller.introspection.acknowledged import Acknowledged, Notice
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Source
from strandline.errors import ConfigError, CorruptionError
from strandline.problem import Problem, Stopped
from strandline.store.memory import MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock

SLOW = Problem("slow", "{messages} messages of {topic!r} were read slowly", Stopped.NOTHING)
LOST = Problem("lost", "topic {topic!r} lacks a key", Stopped.NOTHING)


class Place:
    """A catalog with the source ``s``, and what its processes know of acknowledged notices."""

    def __init__(self) -> None:
        self.consensus = MemoryConsensus()
        self.here, self.there = self.process("h"), self.process("t")
        self.define("shard-1")

    def process(self, name: str) -> Acknowledged:
        """Begin another process."""
        return Acknowledged(HandClock(1), CountingIds(name), self.consensus)

    def define(self, shard: str, starts: int = 0) -> None:
        """Define the source."""
        self.source = Source("s", (("k", "int"),), shard, "kafka", {}, "r", "p", starts=starts)
        self.catalog = Catalog(items={"s": self.source})

    def tick(self, *said: str, stopped: Sequence[str] = ()) -> list[str]:
        """Tick where the environment is written; return the notices that are not acknowledged."""
        notices: Mapping[str, Sequence[str]] = {"s": said} if said else {}
        asyncio.run(self.here.follow(self.catalog, notices, {*stopped}))
        return [each for each in said if not self.here.seen(self.source, each)]

    def acknowledge(self, *said: str) -> None:
        """Acknowledge notices in another process."""
        asyncio.run(self.there.add(self.catalog, {"s": said}))


def test_a_notice_stays_acknowledged_while_its_figures_change() -> None:
    """Damage: a notice with a counter in its text comes back at each tick, however often it is acknowledged."""
    place = Place()
    assert place.tick(SLOW.said(messages=10, topic="t"))
    place.acknowledge(SLOW.said(messages=10, topic="t"))
    assert place.tick(SLOW.said(messages=11, topic="t")) == []
    assert place.tick(SLOW.said(messages=11, topic="u")), "that is another topic"
    assert place.tick(LOST.said(topic="t")), "that is another thing"


def test_a_process_that_received_the_text_alone_acknowledges_it() -> None:
    """Damage: what was acknowledged beside a writer that does not answer is said for ever."""
    place = Place()
    place.acknowledge(str(LOST.said(topic="t")))
    assert place.tick(LOST.said(topic="t")) == []


def test_what_is_over_is_said_when_it_comes_again() -> None:
    """Damage: a column that is lost in May is not said because one was acknowledged in March."""
    place = Place()
    place.tick(LOST.said(topic="t"))
    place.acknowledge(LOST.said(topic="t"))
    assert place.tick(LOST.said(topic="t")) == []
    place.tick()
    assert place.tick(LOST.said(topic="t"))


def test_what_is_only_not_said_now_stays_acknowledged() -> None:
    """Damage: each restart, and each failure of a network, brings back all that was acknowledged."""
    place = Place()
    place.tick(LOST.said(topic="t"))
    place.acknowledge(LOST.said(topic="t"))
    place.tick(LOST.said(topic="t"))
    place.tick(stopped=["s"])  # its reader is opened anew after that
    place.tick()
    assert place.tick(LOST.said(topic="t")) == []
    place.here = place.process("next")
    place.tick()
    assert place.tick(LOST.said(topic="t")) == []
    place.define("shard-1", starts=1)
    place.tick()
    assert place.tick(LOST.said(topic="t")) == []
    place.tick(LOST.said(topic="t"), "another", stopped=[])
    place.tick(LOST.said(topic="u"))
    assert place.tick(LOST.said(topic="t")) == [], "its kind was never over"


def test_what_an_item_had_that_was_dropped_is_forgotten() -> None:
    """Damage: what is kept grows with each source that is dropped, and hides the notices of its successor."""
    place = Place()
    place.acknowledge("a")
    place.define("shard-2")
    assert place.tick("a")
    place.acknowledge("b")
    place.define("shard-1")
    assert place.tick("a"), "it is forgotten with its item"


def test_a_store_that_does_not_answer_costs_no_tick() -> None:
    """Damage: views stand still because it is not known what an operator has seen."""
    place = Place()
    place.tick("a")
    place.acknowledge("a")
    place.tick("a")
    read, place.here._register.read = place.here._register.read, _refused  # type: ignore[method-assign]
    place.tick()
    place.here._register.read = read  # type: ignore[method-assign]
    assert place.tick("a") == [], "that it was over is not known"
    assert Notice.of("a") == Notice("a")


async def _refused() -> bytes | None:
    from strandline.errors import Unavailable

    raise Unavailable("the store is away")


@pytest.mark.parametrize(
    "body",
    [b'{"format": 2, "notices": {}}', b'{"format": 1, "notices": [1]}', b"no JSON"],
    ids=["of a newer version", "of another shape", "broken"],
)
def test_what_cannot_be_read_acknowledges_nothing_and_stops_nothing(body: bytes) -> None:
    """Damage: a location does not open, and no tick ends, for a list of what a person does not want to hear."""
    place = Place()
    said = SLOW.said(messages=10, topic="t")
    place.acknowledge(said)
    assert place.tick(said) == []
    asyncio.run(place.there._register.update(lambda _: body))
    asyncio.run(place.here.read())
    assert place.tick(said) == [said]
    assert place.tick() == []
    with pytest.raises((ConfigError, CorruptionError), match="what is acknowledged"):
        place.acknowledge(said)
