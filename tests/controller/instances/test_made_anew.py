"""A source of an instance is made anew only once a replica has opened the new one; else the present one goes on."""

from __future__ import annotations

import pytest
from tests.controller.instances.apart import Site, run
from tests.controller.instances.test_upstream_columns import defined, settled

from strandline.controller.defining.trying.anew import anew
from strandline.errors import SourceError, Unavailable
from strandline.instance.commands import RunIngestion
from strandline.persist.client import PersistClient
from strandline.sources.reader import SourceReader
from strandline.testing.upstreams.growing import Growing
from strandline.wiring.registry import Readers


async def goes_on(at: Site, upstream: Growing, why: str) -> None:
    """Fail unless the source cannot be made anew because of ``why``, and the present one is kept as it is."""
    before = at.core.catalog
    with pytest.raises(Unavailable, match=f"nothing was changed.*'s' cannot be opened: {why}"):
        await anew(at.core, "s", apply=True)
    assert at.core.catalog.items == before.items
    shards = {each for item in before.items.values() for each in getattr(item, "shards", ())}
    assert not shards & {*at.core.catalog.dropped}
    assert all(each.progress not in shards for each in at.core.catalog.left)


@pytest.mark.parametrize("shared", [True, False])
def test_what_no_replica_opens_takes_no_place(monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> None:
    """Damage: a typing error in a path, or a replica that is away, costs all rows that the source had."""
    refusing: list[str] = []

    async def opened(self: Readers, source: RunIngestion, client: PersistClient, epoch: int) -> SourceReader:
        if refusing:
            raise SourceError(refusing[0])
        return await self._opened(source, self._given(source, client, epoch))

    monkeypatch.setattr(Readers, "reader", opened)

    async def body() -> None:
        upstream = Growing(keyed=frozenset({""}), shared=shared)
        upstream.install(monkeypatch.setitem)
        at = await defined(upstream)
        upstream.say("", {"k": 1, "v": 1})
        await settled(at, upstream, "k", "v")
        first = at.core.catalog.collection("s").shard

        refusing.append("there is nothing to read")
        await goes_on(at, upstream, "there is nothing to read")
        refusing.clear()
        await settled(at, upstream, "k", "v")

        for each in at.processes.values():
            await each.kill()
        await goes_on(at, upstream, "no replica of instance 'x' is connected")
        await at.core.close()
        await at.open()  # no tick was made, so none was asked yet
        await goes_on(at, upstream, "no replica of instance 'x' is connected")
        for each in at.processes.values():
            each.begin()
        await settled(at, upstream, "k", "v")
        assert at.core.catalog.collection("s").shard == first

        refusing.append("it is closed today")
        upstream.say("", {"k": 2, "v": 2})
        await at.core.close()
        await at.open()
        await goes_on(at, upstream, "it is closed today")
        refusing.clear()
        await anew(at.core, "s", apply=True)  # although its problem was the same until now
        assert at.core.catalog.collection("s").shard != first
        await settled(at, upstream, "k", "v")
        await at.core.close()

    run(body())
