"""A source that is opened anew is opened anew in each replica, also in one that hears of it late."""

from __future__ import annotations

from typing import Final

import pytest
from tests.controller.instances.apart import run
from tests.controller.instances.test_skip import Lists, defined

from strandline.controller.defining import sources
from strandline.persist.shard.patience import Deadline
from strandline.testing.lists.list_source import ListReader, Upstream

WITHIN_S: Final = 0.1
"""A tick is waited for so long, until the replica that was away is there again."""


async def _missed(opened: list[Upstream], *, succeeded: bool) -> None:
    upstream = Upstream()
    upstream.produce("p", 1)
    at = await defined(upstream, shared=True)
    for _ in range(2):
        await at.core.tick()
    assert len(opened) == len("ab")
    away = at.processes.pop("a:1")
    away.cut()
    await sources.retry(at.core, "s")
    await at.core.tick()
    if succeeded:
        await at.core.close()
        await at.open()
        await at.core.tick()
    assert len(opened) == len("abb"), "the other one has opened it anew, and once"
    at.processes["a:1"] = away
    upstream.produce("p", 2)
    while not all(each.obeys for each in at.core.require_writing().running.replicas()["x"].values()):
        await at.core.tick(deadline=Deadline(at.core.assembly.clock, WITHIN_S))
    await at.core.tick()
    assert len(opened) == len("abba"), "it goes on with the reader, and the password, of before"
    await at.core.close()
    for process in at.processes.values():
        await process.kill()


@pytest.mark.parametrize("succeeded", [False, True], ids=["same controller", "another controller"])
def test_a_replica_that_was_away_opens_a_source_anew_that_was_retried_meanwhile(
    succeeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a replica reads on with a password that was changed since, until upstream refuses it."""
    opened: list[Upstream] = []
    open_one = Lists.reader

    async def counted(self: Lists, *given: object) -> ListReader:
        opened.append(self.upstream)
        return await open_one(self, *given)

    monkeypatch.setattr(Lists, "reader", counted)
    run(_missed(opened, succeeded=succeeded))
