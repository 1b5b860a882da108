"""Plans over plans: what is made of rows that another plan gives, before these are written anywhere.

If the inner plans are run in the same call, the outer one reads what they gave.  Else the whole is one plan over the
tables of the inner ones.  Rows that are written become normal first (`frames.forms`), and rows inside one plan do not.
So rows with floats in them are not handed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.nodes import Get, Node, Project, rebuilt, with_frames
from strandline.algebra.scalar import Scalar, column
from strandline.algebra.schema import Schema
from strandline.engine.frames import forms
from strandline.engine.frames.rows import Behind, Frame, Planned


@dataclass(frozen=True, slots=True)
class Whole:
    """The plan ``node`` over ``tables``, whose times count from ``origin``; and the same ``behind`` the inner plans."""

    node: Node
    tables: Mapping[str, pa.Table]
    origin: int
    behind: Behind


def derived(node: Node, drafted: Mapping[str, tuple[Schema, Frame]]) -> Whole | None:
    """Return the plan of ``node`` over what is drafted; None if the rows cannot be handed on."""
    inner: dict[str, Node] = {}
    plans: dict[str, Planned] = {}
    tables: dict[str, pa.Table] = {}
    origins: set[int] = set()
    for name, (schema, frame) in drafted.items():
        if not isinstance(frame, Planned) or any(forms.has_floats(kind) for _, kind in types.columns(schema)):
            return None
        own = {each: f"{name}/{each}" for each in frame.tables}  # two of them may read different columns of one frame
        inner[name] = with_frames(frame.node, own.__getitem__)
        tables |= {own[each]: table for each, table in frame.tables.items()}
        plans[name] = frame
        origins.add(frame.origin)
    if len(origins) != 1:
        return None
    return Whole(_over(node, inner), tables, origins.pop(), Behind(node, plans))


def _over(node: Node, inner: Mapping[str, Node]) -> Node:
    """Return ``node`` over the plans ``inner`` in place of frames."""
    if not isinstance(node, Get):
        return rebuilt(node, lambda below: _over(below, inner))
    return Project(inner[node.frame], tuple((name, Scalar(column(stored))) for name, stored in node.columns))
