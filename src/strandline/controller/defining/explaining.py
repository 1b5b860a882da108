"""Explaining: how a view is maintained."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.compute.explain import explain
from strandline.compute.rules.explanation import Explanation
from strandline.controller.core import Core
from strandline.controller.location.catalog import unknown
from strandline.controller.location.items import View
from strandline.controller.planning import replanned
from strandline.instance import live


def explain_view(core: Core, name: str, counted: Mapping[str, int]) -> Explanation:
    """Return how a view is maintained; ``counted``: live counters, which hold its last steps.

    A view that this process has not planned is planned for it, which asks Spark (`Assembly.planning`).

    Raises `DefinitionError` if there is no such view.
    """
    item = core.catalog.find(name)
    if not isinstance(item, View):
        raise unknown("materialized view", name, (n for n, i in core.catalog.items.items() if isinstance(i, View)))
    known = None if core.writing is None else core.writing.plans.get(item)
    if known is None:
        planned, stages = replanned(item, core.catalog, core.assembly.analyst)
    else:
        planned, stages = known.planned, known.stages
    last = {each.name: done for each in stages if (done := live.last_step(counted, each.name)) is not None}
    return explain(planned, stages, last, item.refresh)
