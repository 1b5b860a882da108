"""The machine's clock and names are what the protocols promise."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from strandline.errors import InvalidUsage
from strandline.store.clock import SystemClock, SystemIds


def test_names_start_with_their_kind_and_are_never_given_twice() -> None:
    """Damage: two writers share a key, and one overwrites the other's part."""
    names = [SystemIds().fresh("part") for _ in range(10_000)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"part-[0-9a-f]{32}", name) for name in names)


@pytest.mark.parametrize("kind", ["", "Part", "pärt", "a/b", "a_b", "-a", "0"])
def test_a_kind_that_is_no_safe_name_is_refused(kind: str) -> None:
    """Damage: an id works as a key on one store and escapes on another."""
    with pytest.raises(InvalidUsage):
        SystemIds().fresh(kind)


def test_the_clock_is_the_machines_in_milliseconds() -> None:
    """Damage: every timestamp is off by a factor of a thousand, for ever."""
    before = time.time_ns() // 1_000_000  # noqa: TID251 the other witness
    now = SystemClock().now_ms()
    assert before <= now <= time.time_ns() // 1_000_000  # noqa: TID251 the other witness


def test_a_sleeper_lets_others_run() -> None:
    """Damage: a back-off stops the whole process."""
    order: list[str] = []

    async def sleeper() -> None:
        order.append("sleeps")
        await SystemClock().sleep(0.001)
        order.append("wakes")

    async def other() -> None:
        order.append("works")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper())
            group.create_task(other())

    asyncio.run(both())
    assert order == ["sleeps", "works", "wakes"]
