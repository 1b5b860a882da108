"""Views of several kinds, and the claim that a replica has of each the very plan that the controller made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from random_views import TABLES, random_view
from tests.instance.protocol.samples import dataflow, told

from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.view import plan_view
from strandline.compute.rules.rule import Window
from strandline.compute.stage import Stage, delta_plan, full_plan
from strandline.errors import DefinitionError
from strandline.instance.protocol import codec
from strandline.instance.protocol.messages import Create
from strandline.testing.lists.list_assembly import ListAnalyst


def _schema(*columns: str) -> Schema:
    return Schema(tuple(Column(*column.split(" ", 1)) for column in columns))


_MONEY: Final = "decimal(15,2)"
TPCH: Final = {
    "region": _schema("r_regionkey bigint", "r_name string", "r_comment string"),
    "nation": _schema("n_nationkey bigint", "n_name string", "n_regionkey bigint", "n_comment string"),
    "supplier": _schema(
        *("s_suppkey bigint", "s_name string", "s_address string", "s_nationkey bigint", "s_phone string"),
        *(f"s_acctbal {_MONEY}", "s_comment string"),
    ),
    "customer": _schema(
        *("c_custkey bigint", "c_name string", "c_address string", "c_nationkey bigint", "c_phone string"),
        *(f"c_acctbal {_MONEY}", "c_mktsegment string", "c_comment string"),
    ),
    "part": _schema(
        *("p_partkey bigint", "p_name string", "p_mfgr string", "p_brand string", "p_type string", "p_size int"),
        *("p_container string", f"p_retailprice {_MONEY}", "p_comment string"),
    ),
    "partsupp": _schema(
        *("ps_partkey bigint", "ps_suppkey bigint", "ps_availqty int", f"ps_supplycost {_MONEY}", "ps_comment string"),
    ),
    "orders": _schema(
        *("o_orderkey bigint", "o_custkey bigint", "o_orderstatus string", f"o_totalprice {_MONEY}"),
        *("o_orderdate date", "o_orderpriority string", "o_clerk string", "o_shippriority int", "o_comment string"),
    ),
    "lineitem": _schema(
        *("l_orderkey bigint", "l_partkey bigint", "l_suppkey bigint", "l_linenumber int", f"l_quantity {_MONEY}"),
        *(f"l_extendedprice {_MONEY}", f"l_discount {_MONEY}", f"l_tax {_MONEY}", "l_returnflag string"),
        *("l_linestatus string", "l_shipdate date", "l_commitdate date", "l_receiptdate date"),
        *("l_shipinstruct string", "l_shipmode string", "l_comment string"),
    ),
}
RANDOM: Final = {table.name: Schema(tuple(Column(*column) for column in table.columns)) for table in TABLES}


def steps(stage: Stage) -> list[str]:
    """Return what a stage computes in its first step, in later ones, and afresh."""
    windows = [
        Window(frozenset(stage.inputs), (0,), first=True, small=False),
        Window(frozenset(stage.inputs), (3, 4), first=False, small=True),
        *(Window(frozenset((each,)), (5,), first=False, small=True) for each in stage.inputs),
    ]
    return [repr(delta_plan(stage, window)) for window in windows] + [repr(full_plan(stage))]


def assert_carried(command: Create) -> None:
    """Assert that a replica has a view's command as it was given, and computes the same by it."""
    found = codec.decode(codec.encode(command))
    assert found == command
    assert told(found) == told(command)
    for ours, theirs in zip(command.what.stages, found.what.stages, strict=True):
        assert repr(theirs) == repr(ours), "certificates would name another plan"
        assert (theirs.schema.ddl, theirs.sort) == (ours.schema.ddl, ours.sort)
        assert steps(theirs) == steps(ours)


def carried(views: Mapping[str, str], catalog: Mapping[str, Schema], analyst: Any) -> int:
    """Assert it of the views with these texts that can be planned; return how many these are."""
    # Lists do not know the type of every column, and not every random text may be a view.
    refusals = (DefinitionError, KeyError) if isinstance(analyst, ListAnalyst) else DefinitionError
    count = 0
    for name, sql in views.items():
        try:
            command = dataflow(name, plan_view(sql, catalog, analyst))
        except refusals:
            continue
        assert_carried(command)
        count += 1
    return count


def random_views(first: int, count: int, *, failing: bool = False) -> dict[str, str]:
    """Return the texts of random views."""
    return {f"v{seed}": random_view(seed, failing=failing)[0] for seed in range(first, first + count)}
