"""Binding: all materializations of a project get the views of their definitions together.

A table may go from one to another, whatever their files are called, or two may change tables.  So all of them drop
views before one gets any, and one that would get a table too early waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from strandline.controller.defining.changing.handing import Rebinding, handing
from strandline.controller.defining.changing.rebinding import rebind, rebinding, unbind
from strandline.controller.defining.creating import create
from strandline.controller.defining.ground import Ground
from strandline.controller.defining.project.settings import Defined
from strandline.controller.defining.trying.mistakes import Mistakes, require_command
from strandline.controller.language.statements import CreateMaterialization
from strandline.controller.location import on_error
from strandline.controller.location.items import Materialization


@dataclass(frozen=True, slots=True)
class Bound:
    """The materializations that were ``created``; and those that wait, to be created or to get other views.

    ``circling``: the names, in lower case, of those that wait for each other, and would for ever.
    """

    created: tuple[Defined, ...]
    waiting: tuple[Defined, ...]
    circling: AbstractSet[str]


async def bind(
    core: Ground, defined: Sequence[Defined], mistakes: Mistakes, waits: Callable[[Iterable[str]], bool]
) -> Bound:
    """Create materializations, and have those that are there list the views of their definitions, in a trial.

    ``waits``: whether one of these collections comes later.  What gets it is left as it is, and so is what gets a table
    that this one would have let go, or that is emptied first.  What is wrong is left as it is, too, and noted as one of
    ``mistakes``; what gets a table of it is no mistake of its own.
    """
    before, epoch = core.catalog, core.require_writing().epoch
    each_of = {each.statement.name.lower(): each for each in defined}
    while True:
        order, known = handing(before, await _rebindings(core, defined, mistakes)), len(mistakes.found)
        for name in order.following({name for name, each in each_of.items() if mistakes.waits(each, before)}):
            mistakes.lose(each_of[name])
        tried = [each for each in defined if not mistakes.waits(each, before)]
        stay = {each.statement.name.lower() for each in tried if waits(added(core, each))}
        later = order.later(stay)
        now = [each for each in tried if each.statement.name.lower() not in later]
        made = [each for each in now if before.find(each.statement.name) is None]
        for each in now:
            async with mistakes.noted(core, each):
                await _drop(core, each)
        for each in now:
            if not mistakes.waits(each, before):
                async with mistakes.noted(core, each):
                    await _add(core, each)
        if len(mistakes.found) == known:
            return Bound(tuple(made), tuple(each for each in tried if each not in now), order.circling(stay))
        await core.catalogs.change(epoch, lambda _: before)


def added(core: Ground, defined: Defined) -> list[str]:
    """Return the views, in lower case, that a materialization lists in its definition and does not have."""
    present, statement = pair(core, defined)
    return [each.bind.collection.lower() for each in rebinding(present, statement)[1]]


def pair(core: Ground, defined: Defined) -> tuple[Materialization, CreateMaterialization]:
    """Return a materialization, and its definition; one that is to be created has no bindings."""
    statement, present = defined.statement, core.catalog.find(defined.statement.name)
    assert isinstance(statement, CreateMaterialization), "nothing else is bound"
    if isinstance(present, Materialization):
        return present, statement
    return Materialization(statement.name, statement.endpoint, statement.options, (), ""), statement


async def _rebindings(core: Ground, defined: Sequence[Defined], mistakes: Mistakes) -> dict[str, Rebinding]:
    """Return what is to change, by names in lower case."""
    found = {}
    for each in defined:
        item, statement = pair(core, each)
        if not item.id and mistakes.waits(each, core.catalog):  # it is refused, and has no table for another one
            continue
        drops, adds = rebinding(item, statement)
        views, tables = (frozenset(drop.collection for drop in drops), frozenset(add.bind.table for add in adds))
        async with mistakes.noted(core, each):
            on_error.common_to_all(item.name, item.options, on_error.MaterializationOptions)
            found[item.name.lower()] = Rebinding(item, views, tables)
    return found


async def _drop(core: Ground, defined: Defined) -> None:
    item, statement = pair(core, defined)
    if drops := rebinding(item, statement)[0]:
        await unbind(core, item, drops)


async def _add(core: Ground, defined: Defined) -> None:
    item, statement = pair(core, defined)
    await (rebind(core, item, statement) if item.id else create(core, statement))
    require_command(core, defined)
