"""Sources in an instance get the columns that their upstreams get, while replicas read them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.controller.instances.apart import Site, held, run

from strandline.controller.defining import altering
from strandline.controller.defining.changing import tables
from strandline.controller.language.statements import parse
from strandline.testing.upstreams.growing import Growing
from strandline.wiring.registry import Readers

TICKS_MAX = 1000
PAUSE_S = 0.1
"""Between two ticks: a replica that was away is connected after a while."""


async def defined(upstream: Growing) -> Site:
    """Return a location whose source and view run in the replicas ``a`` and ``b`` of an instance."""
    at, nothing = Site(), None
    have = at.place.assembly
    connectors: Any = Readers(have.clock, have.engine, nothing, nothing)  # type: ignore[arg-type]
    at.place = replace(at.place, assembly=replace(have, connectors=connectors))
    at.process("a")
    at.process("b")
    await at.open()
    await at.execute(
        "CREATE INSTANCE x REPLICAS (a 'a:1', b 'b:1')",
        "CREATE SOURCE s IN INSTANCE x (k BIGINT, v BIGINT) USING growing OPTIONS (evolve 'add')",
        "CREATE MATERIALIZED VIEW every IN INSTANCE x AS SELECT * FROM s",
    )
    return at


async def settled(at: Site, upstream: Growing, *names: str) -> None:
    """Tick until the source and the view are what the records say."""
    wanted = Counter({r["k"]: tuple(r.get(name) for name in names) for r in upstream.records[""]}.values())
    for _ in range(TICKS_MAX):
        time = await tables.tick(at.core)
        uppers = [at.core.require_writing().running.upper(name).at for name in ("s", "every")]
        if at.core.catalog.collection("s").schema.names == names and uppers == [time + 1, time + 1]:
            break
        await at.core.assembly.clock.sleep(PAUSE_S)
    assert at.core.health.problems() == {}
    found = await held(at.core, "s", time)
    assert found == wanted
    assert await held(at.core, "every", time) == Counter(row[:2] for row in wanted.elements())


@pytest.mark.parametrize("shared", [True, False])
def test_replicas_report_the_columns_that_came_and_read_them(monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> None:
    """Damage: a source in an instance stands still for ever once its upstream has a column, or a replica spoils it."""

    async def body() -> None:
        upstream = Growing(keyed=frozenset({""}), shared=shared)
        upstream.install(monkeypatch.setitem)
        at = await defined(upstream)
        upstream.say("", {"k": 1, "v": 1}, {"k": 2, "v": 2})
        await settled(at, upstream, "k", "v")
        upstream.say("", {"k": 1, "v": 3, "note": "first"})
        await settled(at, upstream, "k", "v", "note")
        await at.processes["a:1"].kill()
        at.processes["a:1"].begin()
        upstream.say("", {"k": 1, "v": 4}, {"k": 3, "v": 1, "note": "x", "price": 1.5})
        await settled(at, upstream, "k", "v", "note", "price")
        statement: Any = parse("ALTER SOURCE s ADD COLUMN more BIGINT")
        await altering.alter(at.core, statement)
        upstream.say("", {"k": 2, "v": 4, "more": 7})
        await settled(at, upstream, "k", "v", "note", "price", "more")
        await at.core.close()

    run(body())
