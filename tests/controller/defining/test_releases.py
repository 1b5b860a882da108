"""What upstream keeps for a source is let go when the source is dropped, or named.  Over lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.controller.defining.test_sources import ACCOUNTS, BANK, HERE, SOURCE, Place, do

from strandline.controller.location.catalog import Catalog, Left
from strandline.controller.location.dropped import Released, release
from strandline.controller.location.items import SharedSource
from strandline.errors import Unavailable
from strandline.sources.reader import Progress, Surroundings
from strandline.testing.kinds import ListOptions
from strandline.testing.simulation.kernel import run_sync
from strandline.wiring import registry
from strandline.wiring.loop import side_by_side

DROPS = ("DROP TABLE accounts", "DROP SOURCE bank")


class Keeping(Place):
    """A location with a server that keeps something for each source, until it is asked to let it go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.released: list[str] = []
        self.others: list[int] = []  # how many other sources there were at each release
        self.away = False
        monkeypatch.setitem(registry.READERS, "tables", replace(self.kinds.tables, release=self._release))

    async def _release(self, options: ListOptions, given: Surroundings, others: Sequence[Progress]) -> str:
        self.others.append(len([await progress() for progress in others]))
        await given.progress()  # the shard that says what is the source's own is open still
        if self.away:
            return "slot 'x' is left there"
        self.released.append(options.server)
        return ""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Keeping:
    """Return a location of its own."""
    return Keeping(monkeypatch)


def test_what_upstream_keeps_goes_with_the_source(place: Keeping) -> None:
    """Damage: a replication slot keeps the log of a server until its disk is full."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS)
    run_sync(core.tick())
    do(core, DROPS[0])
    assert place.released == []
    progress = core.catalog.one("bank", SharedSource, "source").progress
    do(core, DROPS[1], "DROP CONNECTION here")
    assert place.released == ["one"]
    run_sync(core.tick())
    assert (place.released, core.catalog.left, core.catalog.dropped) == (["one"], (), ())
    assert (core.health.problems(), core.client.known(progress)) == ({}, None)


def test_a_source_that_was_never_read_is_released_too(place: Keeping) -> None:
    """Damage: a slot that was made, and of whose source no table is left, stays."""
    core = place.open()
    do(core, HERE, BANK, DROPS[1])
    assert place.released == ["one"]


def test_an_upstream_that_is_away_is_named_and_asked_by_the_next_environment(place: Keeping) -> None:
    """Damage: a source of a server that is gone cannot be dropped, or what it left is forgotten."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS)
    run_sync(core.tick())
    place.away = True
    do(core, *DROPS, "DROP CONNECTION here")
    for _ in range(3):
        run_sync(core.tick())
        (problem,) = core.health.problems().values()
        assert problem.startswith("source 'bank' was dropped, and upstream was not released: slot 'x' is left there; ")
        assert problem.endswith("or let upstream keep what it has: DROP SOURCE `bank`")
    run_sync(core.close())
    core = place.open()
    assert len(core.health.problems()) == 1
    run_sync(core.close())
    place.away = False
    core = place.open()
    run_sync(core.tick())
    assert (place.released, core.health.problems(), core.catalog.left, core.catalog.dropped) == (["one"], {}, (), ())


def test_a_store_that_did_not_answer_is_asked_again_by_the_next_tick(
    place: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: one lost request to a store leaves a slot upstream until the location is opened again."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS)

    async def fails(*_: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(core.client, "records", fails)
        do(core, *DROPS)
        (problem,) = core.health.problems().values()
        assert "upstream was not released: the store is away; bring it back" in problem
    run_sync(core.tick())
    assert (place.released, core.catalog.left, core.health.problems()) == (["one"], (), {})


def test_a_second_drop_gives_up_what_a_server_that_is_gone_keeps(place: Keeping) -> None:
    """Damage: a server that is gone for ever is a problem for ever."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS)
    place.away = True
    do(core, *DROPS)
    do(core, HERE.replace("here", "there"), BANK.replace("here", "there"))
    do(core, DROPS[1])
    assert len(core.catalog.left) == 2
    do(core, DROPS[1])
    assert (core.health.problems(), core.catalog.left, core.catalog.dropped) == ({}, (), ())


def test_no_problem_advises_to_drop_a_source_that_is_there_by_now(place: Keeping) -> None:
    """Damage: who follows the status drops the source that was created again, and all that was read of it."""
    core = place.open()
    do(core, HERE, BANK)
    place.away = True
    do(core, DROPS[1])
    (problem,) = core.health.problems().values()
    assert problem.endswith("or let upstream keep what it has: DROP SOURCE `bank`")
    do(core, BANK)
    for _ in range(2):
        (problem,) = core.health.problems().values()
        assert "source 'bank', in whose place another one is, was dropped" in problem
        assert "DROP SOURCE" not in problem
        run_sync(core.tick())
    do(core, DROPS[1])
    assert len(core.health.problems()) == len(core.catalog.left) == 2
    assert all(problem.endswith("DROP SOURCE `bank`") for problem in core.health.problems().values())


def test_a_release_that_could_not_be_noted_is_made_again(place: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: what was dropped keeps a shard, and no problem says so."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS, DROPS[0])

    async def fails(released: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(core.require_writing(), "give_up", fails)
        with pytest.raises(Unavailable):
            do(core, DROPS[1])
    run_sync(core.tick())
    assert (place.released, core.catalog.left, core.health.problems()) == (["one", "one"], (), {})


def test_a_process_that_dies_after_the_drop_leaves_it_to_the_next(place: Keeping) -> None:
    """Damage: what upstream keeps is left silently."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS, DROPS[0])
    run_sync(core.catalogs.change(core.require_writing().epoch, lambda catalog: catalog.without("bank")))
    run_sync(core.close())
    assert place.released == []
    core = place.open()
    assert (place.released, core.catalog.left) == (["one"], ())


def test_a_release_knows_the_sources_that_are_there_still(place: Keeping) -> None:
    """Damage: a slot that a living source made by the same name goes with the one that was dropped."""
    core = place.open()
    do(core, HERE, BANK, SOURCE, DROPS[1])
    place.away = True
    do(core, BANK, DROPS[1], BANK)
    run_sync(core.close())
    place.open()
    assert place.others == [0, 0, 1]


@pytest.mark.parametrize("text", [DROPS[1], "DROP SOURCE IF EXISTS bank"])
def test_a_drop_that_is_repeated_asks_upstream_before_it_gives_up(
    place: Keeping, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Damage: a DROP whose answer was lost leaves a slot behind that no problem names."""
    core = place.open()
    do(core, HERE, BANK)

    async def fails(item: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patched, pytest.raises(Unavailable):
        patched.setattr(core.require_writing(), "stop", fails)
        do(core, text)
    place.away = True
    do(core, text)
    assert len(core.catalog.left) == len(core.health.problems()) == 1
    do(core, text)
    assert (place.released, core.catalog.left, core.health.problems()) == ([], (), {})


def test_upstreams_are_asked_at_the_same_time() -> None:
    """Damage: an environment opens minutes later, since it waits for each server that is gone, one after the other."""

    class Slow:
        def __init__(self) -> None:
            self.asked = asyncio.Barrier(2)

        async def release(self, *_: object) -> str:
            await self.asked.wait()
            return ""

    async def body() -> None:
        lost = [Left(name, "list", {}, f"s-{name}") for name in ("one", "two")]
        nothing: Any = None
        async with asyncio.timeout(150):
            found = await release(lost, Catalog(), cast("Any", Slow()), nothing, 1, side_by_side)
        assert found == Released({"s-one", "s-two"})

    asyncio.run(body())
