"""Handing over: a table of an endpoint goes from one materialization to another.

Only one writes to a table.  Another one may have it as soon as the first has dropped its view, or, if the rows are
taken out, once they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import BoundTable, Materialization
from strandline.controller.location.on_error import OfDropped
from strandline.errors import DefinitionError


def refuse_shared(catalog: Catalog, made: Materialization) -> None:
    """Raise `DefinitionError` if another one writes to one of its tables: each would undo the other."""
    mends = {each.table.lower(): "name another table" for each in made.bindings}
    mends |= {each.bound.table.lower(): "its rows have replaced what was left" for each in made.left if each.empties}
    for other, each in _writers(catalog, made, mends):
        mend = mends[each.table.lower()]
        raise DefinitionError(f"materialization {other.name!r} writes to table {each.table!r} there; {mend}")


def _writers(
    catalog: Catalog, item: Materialization, tables: Iterable[str]
) -> Iterator[tuple[Materialization, BoundTable]]:
    """Yield what others write of ``tables`` at the endpoint of ``item``; names of tables are compared without case."""
    place, named = (item.endpoint, item.endpoint_options), {each.lower() for each in tables}
    for other in catalog.of_kind(Materialization):
        if (other.endpoint, other.endpoint_options) == place and other.name != item.name:
            yield from ((other, each) for each in other.written if each.table.lower() in named)


@dataclass(frozen=True, slots=True)
class Rebinding:
    """A materialization, or one to be created, that has no bindings; the views that it drops, the tables that it gets.

    The views are in lower case.
    """

    item: Materialization
    drops: AbstractSet[str]
    gets: AbstractSet[str]


@dataclass(frozen=True, slots=True)
class Handing:
    """Who waits for whom, by names in lower case.

    ``behind``: the others that have a table of each until they drop its view.  ``emptied``: those with a table that is
    being emptied.  ``emptying``: of ``behind``, those that take the rows out then.
    """

    behind: Mapping[str, AbstractSet[str]]
    emptied: AbstractSet[str]
    emptying: Mapping[str, AbstractSet[str]]

    def following(self, stay: Collection[str]) -> set[str]:
        """Return the names of ``stay``, and of what is behind any of them."""
        found = set(stay)
        while more := {name for name, others in self.behind.items() if others & found} - found:
            found |= more
        return found

    def later(self, stay: Collection[str]) -> set[str]:
        """Return the names of what cannot change yet if ``stay`` does not."""
        return self.following({*stay, *self.emptied, *(name for name, others in self.emptying.items() if others)})

    def circling(self, stay: Collection[str]) -> set[str]:
        """Return the names of those that cannot change ever: each waits until another of them has emptied a table."""
        later = self.later(stay)
        begun = {name for name, others in self.emptying.items() if others - later}
        return later - self.following({*stay, *self.emptied, *begun})


def handing(catalog: Catalog, rebindings: Mapping[str, Rebinding]) -> Handing:
    """Return who waits for whom; ``rebindings``: what is to change, by names in lower case."""
    behind: dict[str, set[str]] = {name: set() for name in rebindings}
    emptying: dict[str, set[str]] = {name: set() for name in rebindings}
    emptied = set()
    for name, rebinding in rebindings.items():
        for other, bound in _writers(catalog, rebinding.item, rebinding.gets):
            of = rebindings.get(other.name.lower())
            if bound not in other.bindings:
                emptied.add(name)
            elif of is not None and bound.collection in of.drops:
                behind[name].add(other.name.lower())
                if of.item.common_options.on_drop is OfDropped.REMOVE:
                    emptying[name].add(other.name.lower())
    return Handing(behind, emptied, emptying)
