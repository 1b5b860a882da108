"""The views of the world of the whole system: their SQL, and what each means, said by hand in Python.

The meaning is written from the SQL alone: from the rows of the inputs at one time to the rows of the view at it.  It
knows nothing of plans, updates or times, so whatever the maintenance rules do, they are held against something else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from strandline.algebra.nodes import Opaque
from strandline.algebra.schema import SUCCESSOR, Column, Schema
from strandline.compute.plan.view import PlannedView
from strandline.compute.stage import Stage
from strandline.controller import planning
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import InstanceItem, Materialization
from strandline.controller.location.version import read_by
from strandline.frontier import Refresh
from strandline.testing.lists.list_assembly import ListAnalyst
from strandline.testing.lists.list_plans import Query
from strandline.testing.lists.list_source import SCHEMA as MESSAGES

Row: TypeAlias = tuple[Any, ...]
Inputs: TypeAlias = Mapping[str, Sequence[Row]]
Meaning: TypeAlias = Callable[[Inputs], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A view that a history may define: what it reads (tables ``t1 t2 (k, v, id)``, sources ``u1 u2``, views)."""

    sql: str
    inputs: tuple[str, ...]
    meaning: Meaning
    key: tuple[str, ...] = ()
    errors: Callable[[Inputs], int] = lambda of: 0
    """How many errors of its own it has besides; its inputs' errors are errors of it too."""
    width: int = 3
    """How many columns of a table its meaning knows."""


def _sums(rows: Iterable[Row]) -> list[Row]:
    groups = defaultdict(list)
    for k, v, _ in rows:
        groups[k].append(v)
    return [(k, len(values), sum(values)) for k, values in groups.items()]


def _counted(rows: Iterable[Row]) -> list[Row]:
    groups = defaultdict(list)
    for k, v, _, more in rows:
        groups[k].append((v, more is not None))
    return [(k, sum(there for _, there in values), sum(v for v, _ in values)) for k, values in groups.items()]


def _extremes(rows: Iterable[Row]) -> list[Row]:
    groups = defaultdict(list)
    for partition, _, value in rows:
        groups[partition].append(value)
    return [(partition, min(values), max(values)) for partition, values in groups.items()]


def _zeros(rows: Iterable[Row]) -> int:
    return sum(v == 0 for _, v, _ in rows)


def _joined(of: Inputs) -> list[Row]:
    return [(k, x, y) for k, _, x in of["t1"] for other, _, y in of["t2"] if k == other]


def _met(of: Inputs) -> list[Row]:
    return [(value, id_) for _, _, value in of["u2"] for k, _, id_ in of["t1"] if k == value]


def _padded(of: Inputs) -> list[Row]:
    return [(id_, y) for k, _, id_ in of["t1"] for y in [y for other, _, y in of["t2"] if other == k] or [None]]


def _absent(of: Inputs) -> list[Row]:
    values = {v or None for _, v, _ in of["t2"]}
    asked = [(id_, k if k < 2 else None) for k, _, id_ in of["t1"]]
    return [(id_,) for id_, k in asked if not values or not (k is None or k in values or None in values)]


def _top(rows: Iterable[Row]) -> list[Row]:
    return sorted(((id_, v) for _, v, id_ in rows), key=lambda row: (-row[1], row[0]))[:1]


def _ranked(rows: Sequence[Row]) -> list[Row]:
    return [(id_, k, 1 + sum(other < v for key, other, _ in rows if key == k)) for k, v, id_ in rows]


def _best(rows: Iterable[Row]) -> list[Row]:
    first: dict[Any, tuple[int, int]] = {}
    for k, v, id_ in rows:
        first[k] = min(first.get(k, (-v, id_)), (-v, id_))
    return [(k, id_) for k, (_, id_) in first.items()]


def _without(rows: Iterable[Row], others: Iterable[Row]) -> list[Row]:
    left = Counter(k for k, *_ in rows) - Counter(k for k, *_ in others)
    return [(k,) for k in left.elements()]


def _total(rows: Sequence[Row]) -> list[Row]:
    return [(len(rows), max((value for _, _, value in rows), default=None))]


_SURE: Final = "(12 DIV {0} > 0 OR {1} = 0 OR {0} = 0)"
"""True of every row, though its first part fails for some: what the others say decides."""

VIEWS: Final[dict[str, Wanted]] = {
    "linear": Wanted(
        "SELECT k, v + 1 AS w, id FROM t1 WHERE 12 DIV v > 0 AND v > 1",
        ("t1",),
        lambda of: [(k, v + 1, id_) for k, v, id_ in of["t1"] if v > 1],
        ("id",),
    ),
    "joined": Wanted(
        f"SELECT a.k, a.id AS x, b.id AS y FROM t1 a JOIN t2 b ON a.k = b.k AND {_SURE.format('a.v', 'b.v')}",
        ("t1", "t2"),
        _joined,
    ),
    "padded": Wanted(
        f"SELECT a.id, b.id AS y FROM t1 a LEFT JOIN t2 b ON a.k = b.k AND {_SURE.format('b.v', 'b.v')}",
        ("t1", "t2"),
        _padded,
    ),
    "absent": Wanted(
        "SELECT id FROM t1 WHERE nullif(k, 2) NOT IN (SELECT nullif(v, 0) FROM t2)", ("t1", "t2"), _absent, ("id",)
    ),
    "sums": Wanted(
        "SELECT k, count(*) AS n, sum(v) AS s FROM t1 GROUP BY k", ("t1",), lambda of: _sums(of["t1"]), ("k",)
    ),
    "likewise": Wanted(
        "SELECT k, count(*) AS n, sum(v) AS s FROM t1 GROUP BY k", ("t1",), lambda of: _sums(of["t1"]), ("k",)
    ),
    "extremes": Wanted(
        "SELECT `partition` AS p, min(value) AS lo, max(value) AS hi FROM u1 GROUP BY `partition`",
        ("u1",),
        lambda of: _extremes(of["u1"]),
        ("p",),
    ),
    "total": Wanted("SELECT count(*) AS n, max(value) AS m FROM u1", ("u1",), lambda of: _total(of["u1"])),
    "top": Wanted("SELECT id, v FROM t1 ORDER BY v DESC, id LIMIT 1", ("t1",), lambda of: _top(of["t1"]), ("id",)),
    "ranked": Wanted(
        "SELECT id, k, rank() OVER (PARTITION BY k ORDER BY v) AS place FROM t1",
        ("t1",),
        lambda of: _ranked(of["t1"]),
        ("id",),
    ),
    "best": Wanted(
        "SELECT k, id FROM t1 QUALIFY row_number() OVER (PARTITION BY k ORDER BY v DESC, id) = 1",
        ("t1",),
        lambda of: _best(of["t1"]),
        ("k",),
    ),
    "without": Wanted(
        "SELECT k FROM t1 EXCEPT ALL SELECT k FROM t2", ("t1", "t2"), lambda of: _without(of["t1"], of["t2"])
    ),
    "met": Wanted("SELECT u.value, t.id FROM u2 u JOIN t1 t ON u.value = t.k", ("u2", "t1"), _met),
    "both": Wanted(
        "SELECT `offset` AS o, value FROM u1 UNION ALL SELECT `offset` AS o, value FROM u2",
        ("u1", "u2"),
        lambda of: [(o, value) for _, o, value in (*of["u1"], *of["u2"])],
    ),
    "many": Wanted(
        "SELECT k, n FROM sums WHERE n > 1", ("sums",), lambda of: [(k, n) for k, n, *_ in of["sums"] if n > 1], ("k",)
    ),
    "quotients": Wanted(
        "SELECT id, 12 DIV v AS q FROM t1",
        ("t1",),
        lambda of: [(id_, 12 // v) for _, v, id_ in of["t1"] if v],
        ("id",),
        errors=lambda of: _zeros(of["t1"]),
    ),
    "shares": Wanted(
        "SELECT k, count(*) AS n, sum(12 DIV v) AS s FROM t1 GROUP BY k",
        ("t1",),
        lambda of: _sums((k, 12 // v, id_) for k, v, id_ in of["t1"] if v),
        ("k",),
        errors=lambda of: _zeros(of["t1"]),
    ),
    "above": Wanted(
        "SELECT id FROM quotients WHERE q > 4",
        ("quotients",),
        lambda of: [(i,) for i, q in of["quotients"] if q > 4],
        ("id",),
    ),
}
"""By name; ``likewise`` shares the stage of ``sums``, and ``many`` reads it.  Rows of ``t1`` with a ``v`` of 0 fail in
the last three: an endpoint waits for as long as there is such a row, unless the good rows are to go on.  In others such
a row makes a condition fail that decides nothing."""

AGAIN: Final[dict[str, tuple[Wanted, ...]]] = {
    "sums": (
        Wanted(
            "SELECT k, 2 * count(*) AS n, sum(v) AS s FROM t1 GROUP BY k",
            ("t1",),
            lambda of: [(k, 2 * n, s) for k, n, s in _sums(of["t1"])],
            ("k",),
        ),
        Wanted(
            "SELECT k, 3 * count(*) AS n, sum(v) AS s, max(id) AS last FROM t1 GROUP BY k",
            ("t1",),
            lambda of: [(k, 3 * n, s, max(i for g, _, i in of["t1"] if g == k)) for k, n, s in _sums(of["t1"])],
            ("k",),
        ),
    ),
    "many": (
        Wanted("SELECT k, 5 * n AS n FROM sums", ("sums",), lambda of: [(k, 5 * n) for k, n, *_ in of["sums"]], ("k",)),
    ),
    "linear": (
        Wanted(
            "SELECT k, v + 2 AS w, id FROM t1",
            ("t1",),
            lambda of: [(k, v + 2, id_) for k, v, id_ in of["t1"]],
            ("id",),
        ),
    ),
    "extremes": (
        Wanted(
            "SELECT `partition` AS p, min(value) AS lo, 2 * max(value) + 9 AS hi FROM u1 GROUP BY `partition`",
            ("u1",),
            lambda of: [(p, lo, 2 * hi + 9) for p, lo, hi in _extremes(of["u1"])],
            ("p",),
        ),
        Wanted(
            "SELECT `partition` AS p, min(value) AS lo, max(value) + 20 AS hi, min(value) + 1 AS more "
            "FROM u1 GROUP BY `partition`",
            ("u1",),
            lambda of: [(p, lo, hi + 20, lo + 1) for p, lo, hi in _extremes(of["u1"])],
            ("p",),
        ),
    ),
    "spans": (
        Wanted("SELECT p, hi FROM extremes", ("extremes",), lambda of: [(p, hi) for p, _, hi, *_ in of["extremes"]]),
        Wanted(
            "SELECT p, hi + 50 AS hi FROM extremes",
            ("extremes",),
            lambda of: [(p, hi + 50) for p, _, hi, *_ in of["extremes"]],
        ),
    ),
}
"""What views may be replaced by, by name; ``spans`` is not among the others."""
MORE: Final = Column("more", "int")
"""What a table may get besides ``k``, ``v`` and ``id``."""
WIDER: Final[dict[str, tuple[Wanted, ...]]] = {
    "sums": (
        Wanted(
            "SELECT k, count(more) AS n, sum(v) AS s FROM t1 GROUP BY k",
            ("t1",),
            lambda of: _counted(of["t1"]),
            ("k",),
            width=4,
        ),
    ),
    "linear": (
        Wanted(
            "SELECT k, more AS w, id FROM t1",
            ("t1",),
            lambda of: [(k, more, id_) for k, _, id_, more in of["t1"]],
            ("id",),
            width=4,
        ),
    ),
}
"""What they may be replaced by once ``t1`` has `MORE`."""
PREPARED: Final = {"sums": replace(VIEWS["sums"], sql=VIEWS["sums"].sql.replace("FROM t1", "FROM t1 WHERE v > -1"))}
"""What a next version has in their place, where no value is below zero."""
_MEANT: Final = {
    (name, each.sql): each
    for name in VIEWS.keys() | AGAIN.keys()
    for each in (
        *([VIEWS[name]] if name in VIEWS else []),
        *AGAIN.get(name, ()),
        *WIDER.get(name, ()),
        *filter(None, [PREPARED.get(name)]),
    )
}


def meant(name: str, sql: str) -> Wanted:
    """Return what the view ``name`` of a history is, or what is to replace it, by its query."""
    return _MEANT[name.lower().removeprefix(SUCCESSOR), sql]


TABLE: Final = Schema((Column("k", "int"), Column("v", "int"), Column("id", "int")))
INPUTS: Final = {"t1": TABLE, "t2": TABLE, "u1": MESSAGES, "u2": MESSAGES}


def _asked(name: str, answer: Callable[..., Iterable[Row]]) -> tuple[str, Query]:
    """Return the query of a view that only Spark can run, and its answer over the rows of each relation."""
    wanted = VIEWS[name]
    _, stages = _planned(name, wanted.sql, tuple((each, INPUTS[each]) for each in wanted.inputs))
    (node,) = (stage.plan for stage in stages if isinstance(stage.plan, Opaque))
    return node.sql, lambda relations: answer(*([tuple(r.values()) for r in relations[a]] for a in node.aliases))


def queries() -> dict[str, Query]:
    """Return the queries here that only Spark can run, as the planner has them asked of the engine, and their answers.

    Those with a key have its columns too where the view leaves them out.
    """
    return dict(
        (
            _asked("top", lambda rows: _top((None, v, id_) for id_, v in rows)),
            _asked("ranked", _ranked),
            _asked("best", _best),
            _asked("without", _without),
        )
    )


def padded(row: Row, width: int) -> Row:
    """Return a row of a table with ``width`` columns: what was written without the last of them has NULL there."""
    return (*row, *(None,) * width)[:width]


def multiset(rows: Iterable[Row]) -> Counter[Row]:
    """Return how often each row is there."""
    return Counter(rows)


def define(
    name: str,
    sql: str,
    catalog: Catalog,
    analyst: object,
    *,
    distrusted: bool = False,
    refresh: Refresh | None = None,
    apart: str = "",
    narrowed: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[PlannedView, tuple[Stage, ...]]:
    """Return what `planning.define` does, worked out once for each view over the same schemas."""
    schemas = {
        key: planning.seen(item.schema, narrowed.get(key))
        for key, item in read_by(name, catalog).items.items()
        if not isinstance(item, InstanceItem | Materialization) and key in meant(name, sql).inputs
    }
    planned, stages = _planned(name, sql, tuple(sorted(schemas.items(), key=lambda pair: pair[0])))
    return planned, planning.split(planned, name.lower(), refresh, apart) if refresh or apart else stages


@cache
def _planned(name: str, sql: str, schemas: tuple[tuple[str, Schema], ...]) -> tuple[PlannedView, tuple[Stage, ...]]:
    planned = planning.plan_view(sql, dict(schemas), ListAnalyst())
    return planned, planning.split(planned, name.lower())
