"""The next version of a location's views: their definitions, their shards, how far they are, who asks to promote it.

One value in one register.  The process that prepares it writes it, and so does the one that asks for its promotion;
other processes read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from strandline.controller.location.catalog import Catalog, CatalogStore, shards_of
from strandline.controller.location.items import View
from strandline.errors import ConfigError
from strandline.persist.handles.register import Register, decode_json
from strandline.store.clock import Clock, Ids
from strandline.store.consensus import Consensus

KEY: Final = "next"
FORMAT: Final = 1


class Prepared(msgspec.Struct, frozen=True):
    """A view of the next version: as the catalog is to have it, and the shard that it is computed in meanwhile.

    That is the view's own shard if the view is new, or has other columns than the one that it follows.  ``shard`` is
    empty if it is not prepared: it is computed with the promotion.
    """

    view: View
    shard: str


class Version(msgspec.Struct, frozen=True):
    """What is prepared: the views by name, under which epoch of the location.

    ``behind``: by view, why it could not take over now.  ``later``: by view, why it is not prepared.  ``asked``: the
    token of the promotion that was asked for, and ``begun`` the same once a process carries it out: from then on it is
    withdrawn no longer.  ``left``: shards of earlier ones that nothing has now.  ``after``: the
    token of the promotion before, which made what these views follow.
    """

    format: int = FORMAT
    epoch: int = 0
    views: dict[str, Prepared] = {}
    behind: dict[str, str] = {}
    later: dict[str, str] = {}
    left: tuple[str, ...] = ()
    asked: str = ""
    begun: str = ""
    after: str = ""

    def own(self, catalog: Catalog) -> frozenset[str]:
        """Return the shards that only this version has, and no item of ``catalog``."""
        stages = {shard for each in self.views.values() for shard in each.view.stages.values()}
        return frozenset(stages | {each.shard for each in self.views.values() if each.shard}) - shards_of(catalog.items)

    def promoted(self, catalog: Catalog) -> Catalog:
        """Return the catalog with these views in place of those that they follow; replicas of before are fenced.

        Raises `ConfigError` if one of these was defined anew since, or another version was promoted.
        """
        if catalog.promoted != self.after:
            raise ConfigError("another version was promoted while this one was prepared; prepare it again")
        for name, each in self.views.items():
            present = catalog.items.get(name)
            follows = isinstance(present, View) and present.shard == each.view.shard
            if (present is not None and not isinstance(present, View)) or (each.view.seed and not follows):
                raise ConfigError(f"{each.view.name!r} was defined anew while its next version was prepared")
            catalog = catalog.with_item(each.view)
        left = set(self.left) - shards_of(catalog.items)
        promoted = msgspec.structs.replace(catalog, dropped=tuple(sorted({*catalog.dropped, *left})))
        promoted = msgspec.structs.replace(promoted, promoted=self.asked)
        return promoted.with_writes_raised(catalog.epoch + 1)


class Versions:
    """The next version of a location, as it is durable.

    Once it is promoted the catalog has it, so it is next no longer: from then on there is none, also where the process
    that promoted it died before it could say so here.
    """

    def __init__(self, clock: Clock, ids: Ids, consensus: Consensus, catalogs: CatalogStore) -> None:
        self._register = Register(KEY, clock, ids, consensus)
        self._catalogs = catalogs

    async def read(self) -> Version:
        """Return the version that is prepared now, by the catalog as last seen; one without views: none is."""
        return self._next(_decode(await self._register.read()))

    async def change(self, edit: Callable[[Version], Version]) -> Version:
        """Replace the version by ``edit`` of it, and return the new one; the same again writes nothing."""

        def step(body: bytes | None) -> bytes | None:
            before = _decode(body)
            after = edit(self._next(before))
            return None if after == before else msgspec.json.encode(after)

        return self._next(_decode(await self._register.update(step)))

    def _next(self, found: Version) -> Version:
        promoted = self._catalogs.current.promoted
        return Version(epoch=found.epoch) if found.asked and found.asked == promoted else found


def _decode(body: bytes | None) -> Version:
    return Version() if body is None else decode_json("the next version", body, _decoder, FORMAT)


_decoder = msgspec.json.Decoder(Version)
