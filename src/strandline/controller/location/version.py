"""The next version of a location's views: their definitions, their shards, how far they are, who asks to promote it.

One value in one register.  The process that prepares it writes it, and so does the one that asks for its promotion;
other processes read it.

The next version of a single view is an item of the catalog: its *successor* (`View.replaces`), which the process that
writes brings on like any view.  Once it has come as far as the view that it replaces, one write of the catalog puts it
in place (`succeeded`).  The view keeps its shard, and the successor's is its seed from then on; unless the successor
`moves`: then its shard is the view's, and what reads the view has a successor too, which reads that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from strandline.algebra.schema import SUCCESSOR, quote
from strandline.controller.location.catalog import Catalog, CatalogStore, shards_of
from strandline.controller.location.items import Collected, IndexItem, Item, Materialization, View
from strandline.errors import ConfigError, DefinitionError
from strandline.persist.handles.register import Register, decode_json
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Consensus

KEY: Final = "next"
FORMAT: Final = 1


class Prepared(msgspec.Struct, frozen=True):
    """A view of the next version: as the catalog is to have it, and the shard that it is computed in meanwhile.

    That is the view's own shard if the view is new, or has other columns than the one that it follows.  ``shard`` is
    empty if it is not prepared: it is computed with the promotion.  ``saw``: the columns of each table that it reads,
    as they were when it was planned: it sees these also if the table has got more since.
    """

    view: View
    shard: str
    saw: dict[str, tuple[str, ...]] = {}

    def seen(self, catalog: Catalog) -> View:
        """Return the view as ``catalog`` is to have it."""
        wider = {name: names for name, names in self.saw.items() if _names(catalog, name) != names}
        return msgspec.structs.replace(self.view, narrowed={**wider, **self.view.narrowed}) if wider else self.view


def _names(catalog: Catalog, name: str) -> tuple[str, ...]:
    found = catalog.items.get(name)
    return found.schema.names if isinstance(found, Collected) else ()


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

    def refused(self, catalog: Catalog) -> str:
        """Return why it cannot be promoted now, however far its views are; empty: nothing stands in the way."""
        return being_replaced(catalog) or self.stranded(catalog)

    def stranded(self, catalog: Catalog) -> str:
        """Return which item outside this version could not go on after its promotion, and why; empty: all can."""
        changed = {
            name: {column.name.lower() for column in each.view.schema}
            for name, each in self.views.items()
            if isinstance(present := catalog.items.get(name), View) and present.columns != each.view.columns
        }
        for name, item in others(catalog).items():
            if name in self.views or name in self.later:
                continue
            match item:
                case View(imports=read):
                    lost = [each for each in read if each in changed]
                case IndexItem(collection=each, key=key):
                    lost = [each] if _lacks(changed.get(each), key) else []
                case Materialization(bindings=bindings):
                    lost = [each.collection for each in bindings if _lacks(changed.get(each.collection), each.key)]
                case _:
                    lost = []
            if lost:
                return (
                    f"{item.name!r} reads {catalog.items[lost[0]].name!r}, whose columns change with the next version: "
                    "drop it, or have the project define it as it is to be"
                )
        return ""

    def promoted(self, catalog: Catalog, query_from: int = 0) -> Catalog:
        """Return the catalog with these views in place of those that they follow; replicas of before are fenced.

        ``query_from``: the time before which a view that goes on may hold rows of its query of before.

        Raises `ConfigError` if one of these was defined anew since, another version was promoted, a view waits to be
        replaced, or what reads one of these could not go on.
        """
        if refused := self.refused(catalog):
            raise ConfigError(refused)
        if catalog.promoted != self.after:
            raise ConfigError("another version was promoted while this one was prepared; prepare it again")
        for name, each in self.views.items():
            present = catalog.items.get(name)
            follows = isinstance(present, View) and present.shard == each.view.shard
            if (present is not None and not isinstance(present, View)) or (each.view.seed and not follows):
                raise ConfigError(f"{each.view.name!r} was defined anew while its next version was prepared")
            view = each.seen(catalog)
            if isinstance(present, View) and follows:  # its history goes on
                since = present.query_from if view.sql == present.sql else query_from
                view = msgspec.structs.replace(view, begins=present.begins, fence=present.fence, query_from=since)
            catalog = catalog.with_item(view)
        left = set(self.left) - shards_of(catalog.items)
        promoted = msgspec.structs.replace(catalog, dropped=tuple(sorted({*catalog.dropped, *left})))
        promoted = msgspec.structs.replace(promoted, promoted=self.asked)
        return promoted.with_writes_raised(catalog.epoch + 1)


def _lacks(columns: AbstractSet[str] | None, key: Iterable[str]) -> bool:
    return columns is not None and not columns >= {column.lower() for column in key}


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


def successors(catalog: Catalog) -> list[View]:
    """Return the views that are to replace others, in the order they were defined."""
    return [item for item in catalog.items.values() if isinstance(item, View) and item.replaces]


def asked_for(catalog: Catalog) -> list[View]:
    """Return the successors that replace a query or a schedule; the others only follow these."""
    found = []
    for each in successors(catalog):
        present = catalog.one(each.replaces, View, "view")
        follows = each.sql == present.sql and each.schedule == present.schedule
        wider = any(
            each.narrowed.get(read) != names
            for read, names in present.narrowed.items()
            if not each.narrowed or successor(read) not in catalog.items  # else it reads what is to replace that
        )
        if not follows or wider:
            found.append(each)
    return found


def being_replaced(catalog: Catalog) -> str:
    """Return why no version can be promoted while views wait to be replaced; empty: none does."""
    waiting = asked_for(catalog)
    if not waiting:
        return ""
    names = ", ".join(repr(catalog.items[each.replaces].name) for each in waiting)
    drops = "; ".join(f"DROP MATERIALIZED VIEW {quote(each.name)}" for each in waiting)
    why = f"no version is promoted while {names} waits to be replaced"
    return f"{why}: try again once that is done, or take it back: {drops}"


def others(catalog: Catalog) -> dict[str, Item]:
    """Return the items of a catalog without the successors, by name."""
    return {key: item for key, item in catalog.items.items() if not key.startswith(SUCCESSOR)}


def successor(name: str) -> str:
    """Return the name of the successor of the view ``name``.

    >>> successor("Totals")
    '__next_totals'
    """
    return f"{SUCCESSOR}{name.lower()}"


def read_by(name: str, catalog: Catalog) -> Catalog:
    """Return ``catalog`` as the query of the view ``name`` reads it: without that view, and without successors.

    A successor reads those that move in the places of what they replace, and not the view that it replaces itself.
    """
    own, items = name.lower(), others(catalog)
    if own.startswith(SUCCESSOR):
        own = own.removeprefix(SUCCESSOR)
        for each in [each for each in successors(catalog) if moves(each, catalog)]:
            items[each.replaces] = msgspec.structs.replace(each, name=items[each.replaces].name)
    items.pop(own, None)
    return msgspec.structs.replace(catalog, items=items)


def moves(following: Item | None, catalog: Catalog) -> bool:
    """Return whether a successor comes with a shard of its own: its columns are others, or there is a schedule."""
    if not isinstance(following, View) or not isinstance(present := catalog.items.get(following.replaces), View):
        return False
    return following.columns != present.columns or bool(following.refresh or present.refresh)


def imported(name: str, read: Iterable[str], catalog: Catalog) -> tuple[str, ...]:
    """Return the names of the items that the view ``name`` reads by the names ``read``, which stand in its query."""
    if not name.startswith(SUCCESSOR):
        return tuple(read)
    return tuple(successor(each) if moves(catalog.items.get(successor(each)), catalog) else each for each in read)


def companies(catalog: Catalog) -> list[frozenset[str]]:
    """Return the names of the successors, in those companies that are put in place together: they read each other."""
    found: list[frozenset[str]] = []
    for each in successors(catalog):
        own = {each.name.lower(), *(name for name in each.imports if name.startswith(SUCCESSOR))}
        joined = [company for company in found if company & own]
        found = [company for company in found if not company & own]
        found.append(frozenset(own.union(*joined)))
    return found


def succeeded(catalog: Catalog, names: AbstractSet[str], begins: int = 0) -> Catalog:
    """Return the catalog with the successors ``names`` in the places of those that they replace.

    ``begins``: from when on those that move can be read; no view that goes on holds rows of the new queries before it.
    Those that go on are written beyond all that wrote them before, and so are the views that replicas move along with
    them: a replica that hears of this late is fenced.
    """
    catalog = msgspec.structs.replace(catalog, replaced=catalog.replaced + 1)
    placed = [each for each in successors(catalog) if each.name.lower() in names]
    after: dict[str, Item] = {each.replaces: _in_place(each, catalog, begins) for each in placed}
    for view in [view for view in after.values() if isinstance(view, View) and view.fence]:
        for each in moved_along(view, catalog):
            after.setdefault(each.name.lower(), msgspec.structs.replace(each, fence=catalog.replaced))
    items = {key: after.get(key, item) for key, item in catalog.items.items() if key not in names}
    return catalog.having(items)


def moved_along(view: View, catalog: Catalog) -> list[View]:
    """Return the views that read ``view``, directly or not, in its instance: a replica may move them in one write."""
    reading = [catalog.items[name] for name in sorted(catalog.downstream(view.name) - {view.name.lower()})]
    found = [each for each in reading if isinstance(each, View) and each.instance == view.instance]
    return [each for each in found if view.instance and not each.replaces]


def beginning(catalog: Catalog, name: str, begins: int) -> Catalog:
    """Return the catalog in which the view ``name``, and each that reads it, can be read from ``begins`` on.

    One with a schedule shows its last refresh, so it can be read from its next refresh on.
    """
    items = dict(catalog.items)
    for each in catalog.downstream(name):
        if isinstance(view := items[each], View):
            first = begins if view.refresh is None else view.refresh.up(begins) or begins
            items[each] = msgspec.structs.replace(view, begins=max(view.begins, first))
    return catalog.having(items)


def require_settled(catalog: Catalog, names: Iterable[str]) -> None:
    """Raise `DefinitionError` if one of ``names`` is about to become a view with other columns."""
    for name in names:
        following = catalog.items.get(successor(name))
        if moves(following, catalog):
            raise DefinitionError(
                f"{catalog.items[name].name!r} is being replaced by a query with other columns or another schedule; "
                f"try again once that is in place, or take it back: DROP MATERIALIZED VIEW {quote(successor(name))}"
            )


def _in_place(following: View, catalog: Catalog, begins: int) -> View:
    present, keeps = catalog.one(following.replaces, View, "view"), not moves(following, catalog)
    return msgspec.structs.replace(
        following,
        name=present.name,
        imports=tuple(name.removeprefix(SUCCESSOR) for name in following.imports),
        shard=present.shard if keeps else following.shard,
        seed=following.shard if keeps else "",
        begins=present.begins if keeps else begins,
        fence=catalog.replaced if keeps else 0,
        query_from=begins,
    )


def _decode(body: bytes | None) -> Version:
    return Version() if body is None else decode_json("the next version", body, _decoder, FORMAT)


_decoder = msgspec.json.Decoder(Version)
