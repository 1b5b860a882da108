"""Messages of every kind: written by hand, and drawn at random from the annotations of their fields."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from random_views import TABLES, TYPES, Relation, View
from sqlglot import exp

from strandline.algebra.nodes import (
    NOTHING,
    Accumulate,
    Accumulator,
    Aggregate,
    Constant,
    Equal,
    Failing,
    Filter,
    First,
    Get,
    Join,
    Key,
    Negate,
    Newest,
    Node,
    Opaque,
    Order,
    Project,
    Reduce,
    Regroup,
    Replay,
    Restrict,
    UnionAll,
)
from strandline.algebra.scalar import (
    HasValue,
    Known,
    Scalar,
    binary,
    call,
    case,
    cast,
    column,
    conjunction,
    is_null,
    number,
    scalar,
)
from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.view import PlannedView
from strandline.compute.sink.correction import Disagreement
from strandline.compute.stage import Stage, split
from strandline.frontier import EMPTY, Every, Frontier, Refresh
from strandline.instance.commands import Advance, Collection, Output, RunDataflow, RunIngestion, RunMaterialization
from strandline.instance.protocol.messages import (
    AllowCompaction,
    AllowWrites,
    CancelPeeks,
    Create,
    CreateInstance,
    Frontiers,
    Hello,
    InitializationComplete,
    Peek,
    PeekResponse,
    Reconciled,
    Refused,
    RunIndex,
    Schedule,
    Status,
    UpdateConfiguration,
    Welcome,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.persist.shard.batch import Digest
from strandline.problem import Case, Way

DEEP: Final = 40
"""Deeper than what is sent as text."""


# ---- what is compared ------------------------------------------------------------------------------------------------


def told(value: Any) -> Any:
    """Return everything that a message holds as plain tuples: also what no comparison and no text of it shows."""
    if isinstance(value, Scalar):
        return value.sql, told_tree(value.tree)
    if is_dataclass(value):
        return type(value), [(each.name, told(getattr(value, each.name))) for each in fields(value)]
    if isinstance(value, msgspec.Struct):
        return type(value), [(name, told(getattr(value, name))) for name in value.__struct_fields__]
    if isinstance(value, Mapping):
        return [(name, told(each)) for name, each in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    return [told(each) for each in value] if isinstance(value, tuple | list) else (type(value), value)


def told_tree(value: Any) -> Any:
    """Return a tree of SQL as plain tuples, but for what a parser notes at a division."""
    if isinstance(value, list):
        return [told_tree(each) for each in value]
    if not isinstance(value, exp.Expr):
        return type(value), value
    noted = ("typed", "safe") if isinstance(value, exp.Div) else ()
    held = {k: each for k, each in value.args.items() if k not in noted and not (each is None or each in (False, []))}
    return type(value), [(name, told_tree(held[name])) for name in sorted(held)]


def dataflow(name: str, planned: PlannedView) -> Create:
    """Return the command that a controller makes of a planned view."""
    stages = split(planned, name)
    return Create(
        name,
        (name,),
        RunDataflow(
            Collection(name, f"shard-{name}", planned.schema, "7 days"),
            stages,
            {stage.name: f"shard-{stage.name}" for stage in stages[:-1]},
            {each: Collection(each, f"shard-{each}", planned.schema) for each in planned.imports},
            {"spark.sql.session.timeZone": "UTC"},
            frozenset(planned.imports[1:]),
            Refresh((Every(60_000),), created=1),
            f"seed-{name}",
        ),
    )


# ---- by hand ---------------------------------------------------------------------------------------------------------

SCHEMA: Final = Schema((Column("a b", "int"), Column("na`me", "array<struct<x:int,`y z`:decimal(10,2)>>")))
COLLECTION: Final = Collection("Orders", "shard-1", SCHEMA, "1 day")
GET: Final = Get("orders:new", (("k", "a b"), ("v", "na`me")))
KEYS: Final = (("k", scalar("`k`")),)
FIRST: Final = First((Order("k"), Order("v", descending=True, nulls_first=False)), 3)
TOTAL: Final = Aggregate("n", "sum", scalar("`k` + 1"), distinct=True, type="bigint", argument_type="int")
ROWS: Final = Aggregate("rows", "count", None, distinct=False, type="bigint", argument_type="")


def deep(levels: int = DEEP) -> Scalar:
    """Return an expression of so many levels at least."""
    tree: exp.Expr = column("k")
    for _ in range(levels):
        tree = binary(exp.Sub, number(1), tree)
    return Scalar(tree)


EXPRESSIONS: Final = {
    "column": Scalar(column("a `b`")),
    "text": scalar(r"'it\'s' || `k` || '\n\\'"),
    "date": scalar("`k` > DATE '2020-01-01' AND `v` < TIMESTAMP '2020-01-01 00:00:00'"),
    "cast": Scalar(cast(column("k"), "decimal(10,2)")),
    "cast to a date": Scalar(cast(exp.Literal.string("2020-01-01"), "date")),
    "cast as written": scalar("CAST(`k` AS DECIMAL(10,2))"),
    "try cast": scalar("TRY_CAST(`k` AS INT) + `k`::int"),
    "has value": Scalar(conjunction([HasValue(this=scalar("1 / `k`").tree), is_null(column("v"))])),
    "known": Scalar(case(Known(this=column("k"), mark=column("m")), HasValue(this=cast(column("v"), "int")))),
    "name": Scalar(call("Upper", column("k"))),
    "lambda": scalar("aggregate(array(`k`, 1), 0, (acc, x) -> acc + coalesce(x, 0))"),
    "division": Scalar(binary(exp.Div, cast(column("s"), "double"), cast(column("n"), "double"))),
    "call of a reserved name": scalar("__has_value(`k`) OR __known(`k`, `m`) OR __cast(`k`, 'int') OR __cast(`k`)"),
    "deep": deep(),
}

NODES: Final[tuple[Node, ...]] = (
    GET,
    Constant(("x", "y"), ((scalar("1"), scalar("NULL")),), 7),
    NOTHING,
    Project(GET, tuple(EXPRESSIONS.items())),
    Filter(GET, scalar("`k` IN (1, 2) AND NOT `v` LIKE 'a%'")),
    Join((GET, GET), (Equal(scalar("`k`"), scalar("`l`"), nulls=True),), (scalar("`k` < `v`"),), 1),
    UnionAll((GET, GET)),
    Negate(GET),
    Reduce(GET, KEYS, (TOTAL, ROWS)),
    Opaque(
        (GET,), ("t",), "SELECT 1", ("x",), "windows", picks=True, key=Key((("k",),), ("x",)), top=True, first=FIRST
    ),
    Opaque((), (), "SELECT 1", ("x",), ""),
    Accumulate(GET, NOTHING, KEYS, (Accumulator("n", scalar("1L"), "bigint"),), "n", (1, 2), 1, small=False),
    Regroup(GET, GET, NOTHING, KEYS, (TOTAL,), (3,), None, small=False, first=FIRST),
    Replay((GET,), ("t",), "SELECT * FROM t", ("k", "v"), NOTHING, (1, 2**62), partial=True),
    Restrict(GET, ("k",), GET, small=False, first=FIRST),
    Failing(GET, (scalar("1 / `k`"),), ("1 / k",), (("a b", "k"),), "orders", ("v",)),
    Newest(GET, NOTHING, NOTHING, SCHEMA, ("a b",), once=True),
)
STAGE: Final = Stage("s", "recompute", UnionAll(NODES), ("orders",), SCHEMA, (("a b", "k"),), "a window")
DATAFLOW: Final = RunDataflow(
    COLLECTION,
    (STAGE, Stage("v", "linear", GET, ("orders",), SCHEMA, ())),
    {"s": "shard-2"},
    {"orders": COLLECTION},
    {"spark.sql.ansi.enabled": "true"},
    frozenset({"orders", "a"}),
    Refresh((Every(60_000, 5), Every(7)), (1, 2), at_creation=True, created=3),
    "shard-3",
)
CONFIG: Final = {"path": "x.duckdb", "tables": [{"n": 1, "share": 0.5, "on": True, "none": None}]}
MATERIALIZATION: Final = RunMaterialization(
    MaterializationSpec("m", (Binding("Orders", "t", ("a b",), SCHEMA, 2, "i-1"),), CONFIG),
    *("materialization/7", "duckdb", {"path": "x.duckdb"}, (COLLECTION,), True),
)
INGESTION: Final = RunIngestion(
    "src", (Output(COLLECTION, "public.t", 3), Output(COLLECTION)), "files", {"path": "/a"}, "shard-4", "shard-5"
)

EXAMPLES: Final[Mapping[str, Any]] = {
    "Hello": Hello(7, 3, "location-1"),
    "CreateInstance": CreateInstance("main", "r1"),
    "UpdateConfiguration": UpdateConfiguration({"heavy_lanes": "2"}),
    "Create-RunIngestion": Create("src", ("orders", "items"), INGESTION),
    "Create-RunDataflow": Create("v", ("v",), DATAFLOW),
    "Create-RunMaterialization": Create("m", ("m",), MATERIALIZATION),
    "Create-RunIndex": Create("i", ("i",), RunIndex(COLLECTION, ("a b",)), 12),
    "Schedule": Schedule("v"),
    "AllowWrites": AllowWrites("v"),
    "AllowCompaction": AllowCompaction("v", Frontier(2**63 - 1)),
    "Advance": Advance(7, step=False, wait=True, hurried={"m": 5}),
    "Peek": Peek("u-1", "i", b"\x00\xff", 9, 100),
    "CancelPeeks": CancelPeeks(("u-1", "u-2")),
    "InitializationComplete": InitializationComplete(),
    "Welcome": Welcome("incarnation-1"),
    "Refused": Refused("Dance", "this version does not know it"),
    "Frontiers": Frontiers({"v": Frontier(3), "w": EMPTY}, {"shard-1": Frontier(0)}, 4, ("u",)),
    "Status": Status(
        {"v": "", "src": "gone"},
        {"v": 5, "w": None},
        {"waves": 2},
        {
            "shard-1": Disagreement(
                Frontier(3),
                EMPTY,
                Digest(2**64 - 1, 0),
                Digest(5, 7),
                1,
                2,
                "{'k': 1}",
                afresh=True,
                audited=True,
                by="w-1",
            )
        },
        {"shard-1": ("w-1", "w-2")},
        {"counters": ("step/v/window/full",)},
        added={"orders": (Column("note", "string"),)},
        cases={"src": (Case("file-gone", "gone", (Way("add it", "ALTER PUBLICATION p ADD TABLE t", foreign=True),)),)},
        notice_cases={"counters": ((Case("slow", "it is slow"),),)},
    ),
    "Reconciled": Reconciled(1, {"plan": 2}, 3, 4),
    "PeekResponse": PeekResponse("u-1", b"ARROW1"),
}
"""A message of each kind, and a `Create` of each that can be run."""


# ---- at random -------------------------------------------------------------------------------------------------------

_TEXTS: Final = ("", "a", "A b", "na`me", "it's", "e.f", "名", "\x00", "x" * 40)
_SCOPE: Final = [Relation(f"t{n}", table.columns) for n, table in enumerate(TABLES)]


def random_expression(chance: random.Random, levels: int = 3) -> Scalar:
    """Return an expression that an author wrote, or one that is composed of such ones as the planner does."""
    return Scalar(_tree(chance, levels))


def _tree(chance: random.Random, levels: int) -> exp.Expr:
    if levels <= 0 or chance.random() < 0.25:
        return scalar(View(chance, 0.2).expression(chance.choice(TYPES), _SCOPE, 2)).tree

    def below() -> exp.Expr:
        return _tree(chance, levels - 1)

    ways = (
        lambda: HasValue(this=below()),
        lambda: Known(this=below(), mark=column(chance.choice(_TEXTS))),
        lambda: cast(below(), chance.choice(("int", "DATE", "decimal(10,2)", "array<string>", "struct<`a b`:int>"))),
        lambda: case(below(), below(), chance.choice((None, below()))),
        lambda: call(chance.choice(("coalesce", "If", "RAISE_ERROR", "__cast", "__known")), below(), below()),
        lambda: is_null(below()),
        lambda: exp.Not(this=exp.Paren(this=below())),
        lambda: conjunction([below(), below(), below()]),
        lambda: binary(chance.choice((exp.Add, exp.Sub, exp.Div, exp.EQ, exp.NullSafeEQ, exp.Or)), below(), below()),
        lambda: binary(exp.Mul, below(), number(chance.choice((0, 1, -3, 2**40)))),
        lambda: exp.Literal.string(chance.choice(_TEXTS[:-2])),
    )
    return chance.choice(ways)()


def random_value(annotation: Any, chance: random.Random, depth: int = 5) -> Any:
    """Return a value that an annotation allows."""
    arguments = get_args(annotation)

    def inner(kind: Any) -> Any:
        return random_value(kind, chance, depth - 1)

    match get_origin(annotation):
        case origin if origin in (Union, UnionType):
            kinds = [each for each in arguments if each is not NoneType]
            if Get in kinds:
                kinds = [Get, Constant] if depth <= 0 else kinds
            return None if NoneType in arguments and chance.random() < 0.4 else inner(chance.choice(kinds))
        case origin if origin is tuple and arguments[1:] == (...,):
            return tuple(inner(arguments[0]) for _ in range(chance.randint(0, 2)))
        case origin if origin is tuple:
            return tuple(map(inner, arguments))
        case origin if origin is frozenset:
            return frozenset(inner(arguments[0]) for _ in range(chance.randint(0, 3)))
        case None:
            return _single(annotation, chance, depth)
        case _:
            return {inner(str): inner(arguments[1]) for _ in range(chance.randint(0, 3))}


def _single(kind: Any, chance: random.Random, depth: int) -> Any:
    if kind is str:
        return chance.choice(_TEXTS)
    if kind is int:
        return chance.choice((0, 1, -1, 255, 2**31, 2**62, -(2**62)))
    if kind is bool:
        return chance.random() < 0.5
    if kind is bytes:
        return chance.randbytes(chance.randint(0, 9))
    if kind is Any:
        return chance.choice((None, 1.5, "x", [1, {"a": []}], {}))
    if kind is Scalar:
        return random_expression(chance, chance.randint(0, 2))
    if kind is Schema:
        names = chance.sample(_TEXTS, chance.randint(1, 4))
        return Schema(tuple(Column(name, "int") for name in dict.fromkeys(map(str.lower, names))))
    if kind is Frontier:
        return Frontier(chance.choice((None, 0, 2**63 - 1)))
    hints = get_type_hints(kind)
    found = {name: random_value(hint, chance, depth - 1) for name, hint in hints.items() if name in _fields(kind)}
    if kind is Stage:
        found["kind"] = chance.choice(("linear", "accumulate", "regroup", "recompute"))
    if kind is Binding:
        found |= {"key": found["schema"].names[:1], "incarnation": chance.choice(("", "a-1"))}
        found |= {name: found["delta"] and found[name] for name in ("times", "diffs")} | {"reduce": ""}
    if kind is MaterializationSpec:
        found |= {"bindings": (random_value(Binding, chance, depth - 1),), "splits": chance.choice((1, 4))}
    return kind(**found)


def _fields(kind: Any) -> tuple[str, ...]:
    return kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else tuple(each.name for each in fields(kind))
