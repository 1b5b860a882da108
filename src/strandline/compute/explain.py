"""Explain: how a view is maintained, and why any part of it is recomputed.

Source: design page "compute" (`strandline explain v`), design page "the public face" (`env.explain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.algebra.nodes import frames
from strandline.compute.plan.view import PlannedView
from strandline.compute.rules.phase import Window
from strandline.compute.stage import Stage, delta_plan, full_plan
from strandline.engine.sql.rendering import render


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether every part is maintained from changes, the reasons why not, and the SQL of a step, stage by stage."""

    incremental: bool
    reasons: list[str]
    sql: list[str]
    text: str

    def __str__(self) -> str:
        return self.text


def explain(view: PlannedView, stages: Sequence[Stage]) -> Explanation:
    """Explain ``view``, whose stages are ``stages``, by the SQL of a step in which every input changes at time 1."""
    reasons = [stage.reason for stage in stages if stage.reason is not None]
    written, lines = [], [f"imports: {', '.join(view.imports) or 'none'}"]
    for stage in stages:
        plan = delta_plan(stage, Window(frozenset(stage.inputs), (1,))) or full_plan(stage)
        sql = render(plan, {name: name for name in frames(plan)})
        written.append(sql)
        lines += [
            "",
            f"{stage.name}: {stage.sentence}",
            f"  rule    {' by '.join(filter(None, (stage.kind, ', '.join(stage.sort))))}",
            f"  reads   {', '.join(stage.inputs) or 'nothing'}",
            f"  stores  {stage.schema.ddl}{' (state kept)' if stage is not stages[-1] else ''}",
        ]
        if stage.reason is not None:
            lines.append(f"  because {stage.reason}")
        lines += [f"  | {line}" for line in sql.split("\n")]
    lines += [f"note: {note}" for note in view.notes]
    return Explanation(not reasons, reasons, written, "\n".join(lines))
