"""Handing over: a table of an endpoint goes from one materialization to another.

Only one writes to a table.  Another one may have it as soon as the first has dropped its view, or, if the rows are
taken out, once they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Materialization
from strandline.controller.location.on_error import OfDropped


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
        others = [other for other in catalog.of_kind(Materialization) if other.name.lower() != name]
        claims = [(other, bound) for other in others for bound in rebinding.item.claimed(other, rebinding.gets)]
        for other, bound in claims:
            of = rebindings.get(other.name.lower())
            if bound not in other.bindings:
                emptied.add(name)
            elif of is not None and bound.collection in of.drops:
                behind[name].add(other.name.lower())
                if of.item.common_options.on_drop is OfDropped.REMOVE:
                    emptying[name].add(other.name.lower())
    return Handing(behind, emptied, emptying)
