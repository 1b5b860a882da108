"""Which of the frames to be staged a prepared plan can stage: plans over prepared leaves, and small tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa

from strandline.algebra.nodes import Get, stored_columns
from strandline.algebra.schema import DIFF, TIME
from strandline.engine.frames.rows import Behind, Frame, Local, Planned
from strandline.engine.prepared.plans import Asked, are_few
from strandline.persist.handles.contents import StageRequest

_GIVEN: Final = "given"


def only(updates: pa.Table, columns: Collection[str]) -> pa.Table:
    """Return updates with these columns, their times and diffs."""
    return updates.select([name for name in updates.column_names if name in columns or name in (TIME, DIFF)])


def small_plan(frame: Frame, request: StageRequest, given: Mapping[int, pa.Table]) -> Asked | None:
    """Return what a prepared plan is to stage in place of ``frame``; None: a fresh plan is better.

    ``given``: what other plans gave, by the identities of their frames.
    """
    if not request.small:
        return None
    match frame:
        case Planned(origin=origin, behind=Behind(node, of)) if all(id(each) in given for each in of.values()):
            read = stored_columns(node)
            tables = {name: only(given[id(each)], read.get(name, frozenset())) for name, each in of.items()}
            return Asked(node, tables, origin, request, again=True)
        case Planned(node, tables, origin):
            return Asked(node, tables, origin, request, again=True)
        case Local(table, _) if table.num_rows and are_few([table]):
            names = [name for name in table.column_names if name not in (TIME, DIFF)]
            return Asked(Get(_GIVEN, tuple((name, name) for name in names)), {_GIVEN: table}, 0, request)
        case _:
            return None
