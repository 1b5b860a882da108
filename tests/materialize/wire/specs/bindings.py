"""Random bindings of every kind, with names that no other program expects."""

from __future__ import annotations

from hypothesis import strategies as st

from strandline.algebra.schema import Column, Schema
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.testing.hostile import HOSTILE

TYPES = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(38,0)",
    "decimal(10,2)",
    "array<struct<a:int,`b c`:array<binary>>>",
    "struct<x:decimal(5,3)>",
)
NAMES = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: not name.startswith("__")
)


@st.composite
def bindings(draw: st.DrawFn, resource: str | None = None) -> Binding:
    """Return a binding."""
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique_by=lambda name: name.lower()))
    columns = tuple(Column(name, draw(st.sampled_from(TYPES))) for name in names)
    delta = draw(st.booleans())
    key = draw(st.lists(st.sampled_from(names), min_size=0 if delta else 1, unique=True))
    return Binding(
        draw(NAMES),
        resource or draw(NAMES),
        tuple(key),
        Schema(columns),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from(["", "s1", "shard-7"])),
        delta=delta,
        times=delta and draw(st.booleans()),
        diffs=delta and (not key or draw(st.booleans())),
    )


@st.composite
def tasks(draw: st.DrawFn) -> MaterializationSpec:
    """Return a task of some bindings."""
    resources = draw(st.lists(NAMES, min_size=1, max_size=3, unique_by=lambda name: name.casefold()))
    return MaterializationSpec(draw(NAMES), tuple(draw(bindings(resource)) for resource in resources))
