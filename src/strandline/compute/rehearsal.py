"""A rehearsal: what the steps of a view would run is put before Spark when the view is defined, and not run.

A step's text is made from the plan, not by the author.  If Spark refuses it, the author learns of it at CREATE, and no
tick ever fails on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from strandline.algebra.nodes import frames
from strandline.algebra.schema import Schema
from strandline.compute.plan.scalars.analyst import Analyst
from strandline.compute.rules.phase import Window, source
from strandline.compute.stage import Stage, delta_plan
from strandline.errors import DefinitionError, Position

_START: Final = Position(1, 1)


def rehearse(stages: Sequence[Stage], collections: Mapping[str, Schema], analyst: Analyst) -> None:
    """Rehearse a first step, a step at one time and a step at two times of each of ``stages``, in which all changes.

    Raises `DefinitionError` if one of them could not run: a mistake of ours, but the author's view to write otherwise.
    """
    known = dict(collections)
    for stage in stages:
        changed = frozenset(stage.inputs)
        windows = Window(changed, (0,), first=True), Window(changed, (1,)), Window(changed, (1, 2))
        for step in dict.fromkeys(delta_plan(stage, window) for window in windows):
            if step is None:
                continue
            read = {name: known[collection] for name in frames(step) if (collection := source(name)[0]) != stage.name}
            own = {name: stage.schema for name in frames(step) if source(name)[0] == stage.name}
            try:
                analyst.rehearse(step, read | own, stage.schema)
            except DefinitionError as refused:
                message = f"Spark would refuse a step of this view ({stage.kind}): {refused.message}"
                raise DefinitionError(message, _START) from refused
        known[stage.name] = stage.schema
