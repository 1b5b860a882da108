"""Explain: how a view is maintained, what its last step cost, and why any part of it is recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from strandline.algebra.nodes import frames
from strandline.compute.lookups import described, planned
from strandline.compute.plan.view import PlannedView
from strandline.compute.rules.explanation import Explanation
from strandline.compute.rules.rule import Window, source
from strandline.compute.stage import Stage, delta_plan, full_plan
from strandline.compute.step import ANEW, Done
from strandline.engine.sql.rendering import render
from strandline.frontier import Refresh

_WRITE: Final = "; write "
_INSTEAD: Final = {
    "OFFSET": "LIMIT alone, and leave the first rows out where the view is read",
    "PARTITION BY": "windows with a column in PARTITION BY that all of them share, or a query for each window",
    "the aggregate": "count, sum, avg, min or max; or a GROUP BY of which all grouping sets share a column",
    "grouping sets": "several views, each with some of the sets",
    "a recursive query": "as many joins as there are levels, one view over another",
    "a check found": "the view anew (DROP, then CREATE), once the mistake is mended; please report it",
}
_ELSE: Final = "this part as a view of its own, over as few rows as possible, and the rest as a view over it"


def explain(
    view: PlannedView, stages: Sequence[Stage], last: Mapping[str, Done] | None = None, refresh: Refresh | None = None
) -> Explanation:
    """Explain ``view``, whose stages are ``stages``, by the SQL of a step in which every input changes at time 1.

    ``last``: what the last step of each stage did, where that is known.  ``refresh``: the view's schedule.
    """
    told = [_told(stage, stage is not stages[-1], (last or {}).get(stage.name)) for stage in stages]
    lines = [f"imports: {', '.join(view.imports) or 'none'}"]
    lines += [] if refresh is None else [f"refresh: {refresh}"]
    for stage, each in zip(stages, told, strict=True):
        lines += ["", f"{stage.name}: {stage.sentence}", *_lines(each)]
    lines += [f"note: {note}" for note in view.notes]
    reasons = [stage.reason for stage in stages if stage.reason is not None]
    return Explanation(not reasons, reasons, [each["sql"] for each in told], "\n".join(lines), told)


def _told(stage: Stage, internal: bool, last: Done | None) -> dict[str, Any]:
    """Return all there is to say about a stage."""
    plan = delta_plan(stage, Window(frozenset(stage.inputs), (1,)))
    lookups = () if plan is None else planned(plan)[1]
    plan = plan or full_plan(stage)
    found = [described(source(each.of)[0], each.columns, span=each.span) for each in lookups]
    return {
        "name": stage.name,
        "rule": stage.kind,
        "key": list(stage.sort),
        "reads": list(stage.inputs),
        "stores": stage.schema.ddl,
        "internal": internal,
        "looks_up": list(dict.fromkeys(found)),
        "last_step": None if last is None else {
            "rows_read": last.rows_read,
            "ms": last.ms,
            "window": last.window,
            "plan": last.plan,
            "access": {what: access.name.lower() for what, access in last.access.items()},
        },
        "reason": stage.reason,
        "instead": None if stage.reason is None else instead(stage.reason),
        "sql": render(plan, {name: name for name in frames(plan)}),
    }  # fmt: skip


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"  rule    {' by '.join(filter(None, (told['rule'], ', '.join(told['key']))))}"
    yield f"  reads   {', '.join(told['reads']) or 'nothing'}"
    yield f"  stores  {told['stores']}{' (state kept)' if told['internal'] else ''}"
    if told["looks_up"]:
        yield f"  looks up {'; '.join(told['looks_up'])}"
    if (last := told["last_step"]) is not None:
        how = "computed anew" if last["window"] == ANEW else f"a {last['window']} window"
        done = [how, *(["plan " + last["plan"]] if last["plan"] else [])]
        done += [f"{what}: {access}" for what, access in last["access"].items()]
        yield f"  last step: {last['rows_read']} rows read, {last['ms']} ms; {'; '.join(done)}"
    if told["reason"] is not None:
        yield f"  because {told['reason'].partition(_WRITE)[0]}"
        yield f"  write instead: {told['instead']}"
    yield from (f"  | {line}" for line in told["sql"].split("\n"))


def instead(reason: str) -> str:
    """Return what an author may write in place of what is recomputed for ``reason``.

    >>> instead("it would try all pairs of rows; write an equality between the two sides")
    'an equality between the two sides'
    >>> instead("OFFSET has no maintenance rule")
    'LIMIT alone, and leave the first rows out where the view is read'
    """
    if _WRITE in reason:
        return reason.partition(_WRITE)[2]
    return next((said for part, said in _INSTEAD.items() if part in reason), _ELSE)
