"""Sources of keyed records in a whole environment: the source, and a view over it, are what the messages say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.sources.envelopes.test_keyed import meaning
from tests.sources.envelopes.test_planted import story

from strandline.algebra.schema import DIFF
from strandline.bench.environment import TICK_MS
from strandline.controller.asking.reads import snapshot
from strandline.controller.core import Core
from strandline.controller.defining import definitions, sources
from strandline.controller.holding import Hold
from strandline.controller.language.statements import CreateSource, CreateView
from strandline.controller.location.config import Config, Mode
from strandline.errors import CollectionError, Position
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.simulation.kernel import run_sync
from strandline.testing.upstreams.keyed_log import SCHEMA, KeyedLog, KeyedLogReader, Said, kind
from strandline.wiring import registry

if TYPE_CHECKING:
    from tests.controller.conftest import Place

VIEW = "SELECT p, count(*) AS n, max(v) AS last FROM s GROUP BY p"


@dataclass(frozen=True)
class Log:
    """`Connectors` of one source."""

    upstream: KeyedLog
    engine: ListEngine

    def check(self, *_: Any) -> None:
        """Accept it."""

    def resolve(self, *_: object) -> None:
        """See `Connectors.resolve`: nothing is referred to."""

    def alterable(self, *_: object) -> tuple[str, ...]:
        """See `Connectors.alterable`: nothing is."""
        return ()

    async def ask(self, *_: Any) -> None:
        """The upstream is there."""

    def connections(self, *_: Any) -> dict[str, str]:
        """Use none."""
        return {}

    async def reader(self, *_: Any) -> KeyedLogReader:
        """Open it."""
        return KeyedLogReader(self.upstream, self.engine)


def viewed(rows: Counter[Any]) -> Counter[Any]:
    """What the view is over ``rows``."""
    groups: dict[Any, list[Any]] = {}
    for _, p, v, _ in rows.elements():
        groups.setdefault(p, []).append(v)
    return Counter((p, len(values), max(values)) for p, values in groups.items())


def said_by(history: list[list[Said]], ticks: int) -> tuple[Counter[Any], int]:
    """What the messages of the first ticks say."""
    return meaning([said for messages in history[:ticks] for said in messages])


@pytest.mark.parametrize("seed", range(4))
def test_over_lists_a_source_and_a_view_are_what_the_messages_say_also_after_a_restart(seed: int) -> None:
    """Damage: a view counts rows that upstream replaced, or a restart has a row twice."""
    history = [[said for said in messages if not said.bad and said.key] for messages in story(seed)]
    blob, consensus, clock, upstream = MemoryBlob(), MemoryConsensus(), HandClock(1_000_000), KeyedLog()

    def opened(number: int) -> Core:
        engine = ListEngine(blob)
        assembly = list_assembly(
            clock, CountingIds(f"c{number}"), blob, consensus, engine=engine, connectors=Log(upstream, engine)
        )
        return run_sync(Core.open(assembly, Config(), Mode.FULL))

    async def read(core: Core, name: str) -> Counter[Any]:
        reader = await core.readers.of(name)
        found = listed(await snapshot(core, reader, reader.state.upper.at - 1, Hold())).rows
        counted: Counter[Any] = Counter()
        for row in found:
            counted[tuple(value for column, value in row.items() if not column.startswith("__"))] += row[DIFF]
        return +counted

    core = opened(0)
    run_sync(sources.create_source(core, CreateSource("s", SCHEMA.ddl, "log", {})))
    run_sync(definitions.create_view(core, CreateView("w", VIEW, Position(1, 1))))
    for number, messages in enumerate(history, start=1):
        upstream.say(*messages)
        clock.now += TICK_MS
        run_sync(core.tick())
        rows, errors = said_by(history, number)
        if not errors:
            assert run_sync(read(core, "s")) == rows
            assert run_sync(read(core, "w")) == viewed(rows)
        if number == len(history) // 2:
            run_sync(core.close())
            core = opened(1)
    run_sync(core.close())


@pytest.mark.spark
def test_on_spark_rows_and_errors_come_and_go(
    place: Place, rows: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: on the data plane that people use, a key has two rows, or an error that upstream has mended."""
    upstream = KeyedLog()
    monkeypatch.setattr(registry, "READERS", {**registry.READERS, "log": kind(upstream)})
    chance = random.Random(7)
    history = [messages for seed in (0, 5) for messages in story(seed)]
    history = [[said for said in messages if said.key] for messages in history]
    history.append([Said(key, "end", "whole") for key in ((1, "a"), (1, None), (2, "a"))])  # it mends what is broken
    env, failing = place.open(), 0
    env.execute("CREATE SOURCE s (k BIGINT, p STRING, v STRING, note STRING) USING log")
    env.execute(f"CREATE MATERIALIZED VIEW w AS {VIEW}")
    for number, messages in enumerate(history, start=1):
        upstream.say(*messages)
        env.tick()
        want, errors = said_by(history, number)
        if errors:
            failing += 1
            with pytest.raises(CollectionError, match="cannot be decoded|stay as they were"):
                rows(env, "SELECT * FROM s")
        else:
            assert Counter(tuple(row.values()) for row in rows(env, "SELECT k, p, v, note FROM s")) == want
            assert Counter(tuple(row.values()) for row in rows(env, "SELECT p, n, last FROM w")) == viewed(want)
        if chance.random() < 0.3:
            env.close()
            env = place.open()
    assert env.verify("w").ok
    assert 0 < failing < len(history)
    env.close()
