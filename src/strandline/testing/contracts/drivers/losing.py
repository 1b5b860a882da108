"""An endpoint that loses what a task has left there, between two transactions of a runtime that goes on.

A driver looks for its checkpoint in the step that writes.  Else the rows after the loss are stored beside rows that are
gone, and nothing ever says so.

Law: M2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from strandline.errors import FencedError, StrandlineError
from strandline.materialize.runtime import Task
from strandline.testing.contracts.drivers.world import EndpointUnderTest, World, row

ATTEMPTS: Final = 3


@runtime_checkable
class Loses(Protocol):
    """An endpoint whose data a test can take away, or replace by earlier ones."""

    def keep(self) -> Callable[[], None]:
        """Copy all that the endpoint holds; what is returned puts the copy in its place."""
        ...


async def lost(endpoint: EndpointUnderTest, *, everything: bool) -> None:
    """Put an earlier state of the endpoint in its place, the one before the first transaction if ``everything``.

    Either the task fills the tables again by itself, or it says what is wrong, and a backfill goes through.
    """
    assert isinstance(endpoint, Loses)
    world = World(endpoint)
    put_back = endpoint.keep()
    runtime = world.runtime()
    await _one_more(world, runtime)
    if not everything:
        put_back = endpoint.keep()
    await _one_more(world, runtime)
    put_back()
    for _ in range(ATTEMPTS):
        try:
            await _one_more(world, runtime)
            break
        except FencedError as error:
            raise AssertionError("no one else has written: a task that believes so stands still") from error
        except StrandlineError:
            continue
    else:
        await runtime.close()
        world.bump_all(1)
        runtime = world.runtime()
    await _one_more(world, runtime)
    await runtime.close()


async def _one_more(world: World, runtime: Task) -> None:
    """Add a row of a new key to each collection, so that only a checkpoint can tell what was there before."""
    key = world.upper + 1
    for feed in world.feeds:
        feed.write(world.upper, (row(key, 1.5, "more"), 1))
    world.seal(key)
    while await runtime.advance():
        pass
    world.check(key)
