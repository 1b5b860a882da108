"""A controller and its replicas agree again after any of them died, and what runs goes on."""

from __future__ import annotations

import asyncio

from tests.controller.instances.apart import ABOVE, TOTALS, site


def test_a_view_of_an_instance_is_kept_by_its_replica() -> None:
    """Damage: a view runs nowhere, or twice, or is not what its query says."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.agree(await at.tick(3))
            assert at.core.require_writing().instance.report().views == {}, "nothing of it runs here"
            await at.execute(ABOVE)
            await at.agree(await at.tick(2))

    asyncio.run(body())


def test_a_controller_that_restarts_finds_everything_running() -> None:
    """Damage: a restart of the controller computes every view anew."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.agree(await at.tick(3))
            for _ in range(3):
                at.processes["a:1"].cut()
                await at.open()
                await at.agree(await at.tick(2))
                link = at.core.require_writing().running.instances["x"].links["a"]
                assert link.heard.reconciled is not None
                assert (link.heard.reconciled.reused, link.heard.reconciled.replaced) == (1, {})
                assert link.heard.incarnation == "a1"

    asyncio.run(body())


def test_a_controller_that_restarts_says_everything_before_anything_is_dropped() -> None:
    """Damage: of several views only those that a new controller opens first are kept, and the others computed anew."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.execute(*(TOTALS.replace("totals", f"more{number}") for number in range(4)))
            await at.agree(await at.tick(3))
            at.processes["a:1"].cut()
            await at.open()
            await at.agree(await at.tick(2))
            heard = at.core.require_writing().running.instances["x"].links["a"].heard.reconciled
            assert heard is not None
            assert (heard.reused, heard.replaced, heard.dropped, heard.created) == (5, {}, 0, 0)

    asyncio.run(body())


def test_a_replica_that_restarts_goes_on_from_what_is_durable() -> None:
    """Damage: a replica that died is not used again, or begins from nothing."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.agree(await at.tick(3))
            await at.processes["a:1"].kill()
            await at.tick()
            assert "no replica of instance 'x' is connected" in at.core.health.problems()["totals"]
            at.processes["a:1"].begin()
            for _ in range(600):
                time = await at.tick()
                if not at.core.health.problems():
                    break
                await asyncio.sleep(0.1)  # noqa: TID251 - a connection is tried again after a while
            await at.agree(time)

    asyncio.run(body())


def test_one_of_two_replicas_may_die_at_any_time() -> None:
    """Damage: views stand still while one of two replicas is away."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a", "b") as at:
            await at.agree(await at.tick(3))
            for name in ("a", "b", "a"):
                await at.processes[f"{name}:1"].kill()
                for _ in range(3):
                    await at.agree(await at.tick())
                at.processes[f"{name}:1"].begin()
                running = at.core.require_writing().running.instances["x"]
                for _ in range(600):
                    await at.agree(await at.tick())
                    if len(running.obeying) == 2:
                        break
                    await asyncio.sleep(0.1)  # noqa: TID251 - a connection is tried again after a while
                assert len(running.obeying) == 2

    asyncio.run(body())
