"""ACKNOWLEDGE: an operator has seen the notices of an item, so they are said no longer."""

from __future__ import annotations

from typing import Any

from strandline.controller.core import Core
from strandline.controller.location.catalog import unknown
from strandline.controller.location.config import Mode
from strandline.errors import InvalidUsage


async def acknowledge(core: Core, name: str | None) -> dict[str, Any]:
    """Acknowledge the notices of an item (None: of all), and return them by the item's name.

    Notices that are acknowledged already are not among them: to acknowledge twice is to acknowledge once.  See
    `introspection.acknowledged` for when one is said again.

    Raises:
        DefinitionError: there is no such item; with candidates.
        InvalidUsage: the item has a problem, or waits, and there is no notice of it; or this environment may write
            nothing.
        StoreError, Unavailable: it may not be durable; try again.
    """
    if core.mode is Mode.INDEPENDENT:
        raise InvalidUsage("an independent environment changes nothing; open the location in another mode")
    await core.look()
    catalog, said = core.catalog, await core.states()
    notices = said.notices
    if name is not None:
        if catalog.find(name) is None:
            raise unknown("item", name, catalog.items)
        notices = {each: told for each, told in notices.items() if each == name.lower()}
        if not notices:
            _refuse(name, said.problems.get(name.lower()), said.waiting.get(name.lower()))
    if notices:
        await core.acknowledged.add(catalog, notices)
    named = {each: item.name for each in notices if (item := catalog.find(each)) is not None}
    return {"acknowledged": {named[each]: [str(one) for one in told] for each, told in notices.items()}}


def _refuse(name: str, problem: str | None, waits: str | None) -> None:
    if problem is not None:
        raise InvalidUsage(
            f"{name!r} has a problem, and only notices can be acknowledged: a problem stands until what caused it is "
            f"ended; {problem}"
        )
    if waits is not None:
        raise InvalidUsage(f"{name!r} has no notice that could be acknowledged: {waits}, and goes on by itself")
