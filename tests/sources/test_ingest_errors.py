"""Errors of a source leave with what upstream takes back, or when a person dismisses them, whatever crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.test_ingest import World, run

from strandline.errors import FencedError, Unavailable
from strandline.frontier import Frontier
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import contents
from strandline.sources.steps import Idle
from strandline.testing.doubles import Crash, Fuse
from strandline.testing.lists.list_source import SCHEMA, Withdrawn, undecodable


async def errors_of(world):
    """What the error half adds up to now."""
    left = Counter()
    for (_, _, _, error, _), diff in (await world.updates()).items():
        if error is not None:
            left[error] += diff
    return {error: count for error, count in left.items() if count}


def test_an_undecodable_record_that_upstream_takes_back_leaves_no_error():
    """Damage: a bad record that its author has withdrawn keeps the source from being read for ever."""

    async def body(world):
        world.upstream.retracts = True
        ingestion = await world.open()
        world.upstream.produce("0", 10, None, None)
        await ingestion.tick(1000)
        world.upstream.produce("0", Withdrawn(1, None), Withdrawn(0, 10))
        await ingestion.tick(2000)
        await ingestion.catch_up()
        assert await world.updates() == {
            ("0", 0, 10, None, 1000): 1,
            (None, None, None, undecodable("0", 1), 1000): 1,
            (None, None, None, undecodable("0", 2), 1000): 1,
            (None, None, None, undecodable("0", 1), 2000): -1,
            ("0", 0, 10, None, 2000): -1,
        }
        world.upstream.produce("0", Withdrawn(2, None))
        await (await world.open(epoch=2)).tick(3000)
        await (await world.open(epoch=3)).catch_up()
        assert await errors_of(world) == {}

    run(body)


def test_a_record_that_comes_and_goes_at_one_time_leaves_nothing():
    """Damage: an empty batch stops the source."""

    async def body(world):
        world.upstream.retracts = True
        ingestion = await world.open()
        world.upstream.produce("0", None, Withdrawn(0, None))
        await ingestion.tick(1000)
        assert await ingestion.catch_up() == Idle()
        assert ingestion.upper == Frontier(1001)
        assert await errors_of(world) == {}

    run(body)


def test_what_takes_back_an_undecodable_record_once_too_often_is_an_error_itself():
    """Damage: a withdrawal that matches nothing is dropped in silence, or makes the error half negative."""

    async def body(world):
        world.upstream.retracts = True
        ingestion = await world.open()
        world.upstream.produce("0", None, Withdrawn(0, None))
        await ingestion.tick(1000)
        world.upstream.produce("0", Withdrawn(0, None))
        await ingestion.tick(2000)
        await ingestion.catch_up()
        assert await errors_of(world) == {undecodable("0", 0, taken_back=True): 1}

    run(body)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["bad", "good", "back"]), max_size=4), min_size=1, max_size=6), st.data())
def test_how_ticks_are_grouped_into_steps_changes_no_error_that_leaves(ticks, data):
    """Law D.  Damage: two instances that batch differently have other errors at one time."""
    produced, messages = [], []
    for kinds in ticks:
        produced.append([])
        for kind in kinds:
            if kind == "back" and messages:
                at = data.draw(st.integers(0, len(messages) - 1))
                if isinstance(messages[at], Withdrawn):
                    continue
                made = Withdrawn(at, messages[at])
            else:
                made = None if kind == "bad" else len(messages)
            messages.append(made)
            produced[-1].append(made)
    found = []

    async def body(world, every):
        world.upstream.retracts = True
        ingestion = await world.open()
        for number, each in enumerate(produced):
            world.upstream.produce("0", *each)
            await ingestion.tick(1000 * (number + 1))
            if (number + 1) % every == 0:
                await ingestion.catch_up()
        await ingestion.catch_up()
        found.append(await world.updates())

    for every in (1, 3, len(ticks)):
        asyncio.run(body(World(), every))
    assert found[0] == found[1] == found[2]


async def held(ingestion):
    """The errors that the source holds now, as rows."""
    state = ingestion._steps[""]._data.state
    wanted = contents(state, SCHEMA, 0, state.upper.at, advance=0, half=Half.ERR)
    return await ingestion.engine.read(wanted)


def test_errors_that_a_person_dismisses_leave_at_a_time_of_their_own():
    """Damage: a bad record that no upstream will ever take back keeps the source from being read for ever."""

    async def body(world):
        ingestion = await world.open()
        world.upstream.produce("0", None, 10)
        await ingestion.tick(1000)
        await ingestion.catch_up()
        world.upstream.produce("0", None)
        await ingestion.dismiss(await held(ingestion), 2000)
        assert ingestion.upper == Frontier(2001)
        assert await errors_of(world) == {}
        await ingestion.tick(3000)
        await ingestion.catch_up()
        assert await world.updates() == {
            (None, None, None, undecodable("0", 0), 1000): 1,
            ("0", 1, 10, None, 1000): 1,
            (None, None, None, undecodable("0", 0), 2000): -1,
            (None, None, None, undecodable("0", 2), 3000): 1,
        }

    run(body)


def test_what_another_instance_has_bound_is_not_lost_when_errors_are_dismissed():
    """Damage: messages that were bound are passed over, because the source says that their time is complete."""

    async def body(world):
        first, second = await world.open(), await world.open()
        world.upstream.produce("0", None)
        await first.tick(1000)
        await first.catch_up()
        errors = await held(first)
        world.upstream.produce("0", 10)
        await second.tick(2000)
        with pytest.raises(Unavailable, match="ask again"):
            await first.dismiss(errors, 2000)
        await first.catch_up()
        await first.dismiss(errors, 3000)
        assert (await world.updates())["0", 1, 10, None, 2000] == 1
        assert await errors_of(world) == {}

    run(body)


def test_a_fenced_instance_dismisses_nothing():
    """Damage: a zombie withdraws an error that its successor has reported, or withdraws it twice."""

    async def body(world):
        zombie = await world.open()
        world.upstream.produce("0", None)
        await zombie.tick(1000)
        await zombie.catch_up()
        errors = await held(zombie)
        successor = await world.open(epoch=2)
        with pytest.raises(FencedError):
            await zombie.dismiss(errors, 2000)
        assert await errors_of(world) == {undecodable("0", 0): 1}
        await successor.dismiss(await held(successor), 3000)
        assert await errors_of(world) == {}

    run(body)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_while_errors_are_dismissed_dismisses_all_of_them_or_none(after):
    """Damage: half of the errors leave, or they leave twice; or a message is lost or doubled on the way."""
    ended = set()

    async def body(world, at):
        ingestion = await world.open()
        world.upstream.produce("0", None, 10, None)
        await ingestion.tick(1000)
        await ingestion.catch_up()
        fuse = Fuse(at, after=after)
        with suppress(Crash):
            burning = await world.open(epoch=2, fuse=fuse)
            await burning.dismiss(await held(burning), 2000)
        left = await errors_of(world)
        assert left in ({}, {undecodable("0", 0): 1, undecodable("0", 2): 1})
        ended.add(len(left))
        last = await world.open(epoch=3)
        world.upstream.produce("0", 11)
        await last.tick(3000)
        await last.catch_up()
        if left:
            await last.dismiss(await held(last), 4000)
        assert await errors_of(world) == {}
        rows = {key[:3]: n for key, n in (await world.updates()).items() if key[3] is None}
        assert rows == {("0", 1, 10): 1, ("0", 3, 11): 1}
        return fuse.count >= at

    at = 1
    while asyncio.run(body(World(), at)):
        at += 1
    assert ended == {0, 2}
