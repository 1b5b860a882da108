"""Adopting: the catalog becomes what a trial has made, in one write."""

from __future__ import annotations

from strandline.controller.core import Core
from strandline.controller.defining.trying.trial import Trial
from strandline.errors import Unavailable


async def adopt(core: Core, trial: Trial) -> None:
    """Have the catalog be what ``trial`` has made, in one write, and have run what it holds.

    A source that takes the place of another one is opened before what that one leaves is given up.

    Raises `Unavailable`, and changes nothing, if the catalog is no longer what it was when the trial began; or if such
    a source cannot be opened, here or by a replica of its instance: then what was there goes on.
    """
    writing, after = core.require_writing(), trial.scratch.catalog
    if after == trial.scratch.before:
        return
    writing.plans.take(trial.scratch.writing.plans)
    before = core.catalog
    await core.catalogs.change(writing.epoch, trial.adopted)
    if unopened := await writing.begin(trial.recreated):
        await core.catalogs.change(writing.epoch, lambda catalog: catalog.returned(before))
        await writing.reconcile()
        whys = "; ".join(f"{after.items[name].name!r} cannot be opened: {why}" for name, why in unopened.items())
        raise Unavailable(f"nothing was changed, since what was dropped for it goes on: {whys}")
    await writing.reconcile()
