"""An equality of unequal types gives Spark's own answer at every time, whatever kind of join asks for it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pytest
from tests.compute.conftest import TIMES, Updates, schema

from strandline.compute.explain import explain
from strandline.compute.stage import split

CATALOG: Final = {
    "o": schema(id="int", i="int", b="bigint", x="double", d="date", t="string", m="decimal(8,2)", big="decimal(38,0)"),
    "c": schema(
        w="int", i="bigint", b="bigint", x="double", f="float", number="string", day="string", at="timestamp",
        m="decimal(10,3)", fine="decimal(38,20)",
    ),
}  # fmt: skip
_NEAR: Final = 2**53
_VALUES: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    "o": {
        "id": (1, 2, 3),
        "i": (0, 1, 2, None),
        "b": (_NEAR, _NEAR + 1, 1, None),
        "x": (float(_NEAR), 1.0, 0.0, 0.5, None),
        "d": (date(2026, 1, 1), date(2026, 1, 2), None),
        "t": ("1", "01", " 1", "2", None),
        "m": (Decimal("1.00"), Decimal("0.50"), None),
        "big": (Decimal(1), Decimal(2), None),
    },
    "c": {
        "w": (10, 20, None),
        "i": (0, 1, None),
        "b": (_NEAR, _NEAR + 1, 1, None),
        "x": (float(_NEAR), 1.0, 0.0, None),
        "f": (1.0, 0.5, 0.0, None),
        "number": ("1", "01", " 1", "2", None),
        "day": ("2026-01-01", "2026-1-1", " 2026-01-02", None),
        "at": (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 10, tzinfo=UTC), None),
        "m": (Decimal("1.000"), Decimal("0.500"), Decimal("0.501"), None),
        "fine": (Decimal("1.1"), Decimal("0.9"), Decimal(2), None),
    },
}
EQUAL: Final = {
    "an integer and a text": "o.i = c.number",
    "a text and an integer": "c.i = o.t",
    "two integers": "o.i = c.i",
    "an integer and a text, NULL too": "c.number <=> o.i",
    "a date and a text": "o.d = c.day",
    "a date and a time": "o.d = c.at",
    "an integer and a double": "o.b = c.x",
    "a double and an integer": "o.x = c.b",
    "a double and a float": "o.x = c.f",
    "a decimal and a text": "o.m = c.number",
    "two decimals": "o.m = c.m",
    "two decimals that lose digits": "o.big = c.fine",
    "a decimal and an integer": "o.m = c.i",
    "values computed of both": "o.i + 1 = concat(c.number, ' ') AND o.t = c.i",
}
JOINS: Final = {
    "inner": "SELECT o.id, c.w FROM o JOIN c ON {}",
    "left": "SELECT o.id, c.w, c.number FROM o LEFT JOIN c ON {}",
    "left, counted": "SELECT count(*) AS n, count(c.w) AS m FROM o LEFT JOIN c ON {}",
    "right": "SELECT o.id, c.w FROM o RIGHT JOIN c ON {} AND c.w > 10",
    "full": "SELECT o.id, c.w FROM o FULL JOIN c ON {}",
    "full, with a further condition": "SELECT o.id, c.w FROM o FULL JOIN c ON {} AND c.w > o.id * 8",
    "semi": "SELECT id FROM o LEFT SEMI JOIN c ON {}",
    "anti": "SELECT id FROM o LEFT ANTI JOIN c ON {}",
    "exists": "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM c WHERE {})",
    "not exists": "SELECT id FROM o WHERE NOT EXISTS (SELECT 1 FROM c WHERE {})",
    "exists or": "SELECT id FROM o WHERE id > 2 OR EXISTS (SELECT 1 FROM c WHERE {})",
    "the greatest": "SELECT id, (SELECT max(w) FROM c WHERE {}) AS m FROM o",
    "a number of rows": "SELECT id, (SELECT count(*) FROM c WHERE {}) AS n FROM o",
    "more than the least": "SELECT id FROM o WHERE id * 10 > (SELECT min(w) FROM c WHERE {})",
    "in what is outside": "SELECT id FROM o WHERE id * 10 IN (SELECT w FROM c WHERE {})",
    "not in what is outside": "SELECT id FROM o WHERE id * 10 NOT IN (SELECT w FROM c WHERE {})",
}
WHOLE: Final = "an integer and a text"
"""The equality that all joins are tried with; all others are with `SOME`."""
SOME: Final = ("full", "exists or", "a number of rows", "full, with a further condition")
_OF_GROUPS: Final = ("the greatest", "a number of rows", "more than the least")


def _history(seed: int) -> dict[str, Updates]:
    """Return random insertions and deletions of both tables; rows repeat."""
    chance = random.Random(seed)
    history: dict[str, Updates] = {}
    for name, values in _VALUES.items():
        held: Counter[Any] = Counter()
        updates: Counter[Any] = Counter()
        for time in TIMES:
            going = chance.sample(list(held.elements()), min(held.total(), chance.randint(0, 3)))
            coming = [tuple(map(chance.choice, values.values())) for _ in range(chance.randint(1, 4))]
            for rows, diff in ((coming, 1), (going, -1)):
                for row in rows:
                    held[row] += diff
                    updates[row, time] += diff
        history[name] = {key: diff for key, diff in updates.items() if diff}
    return history


@pytest.fixture(scope="module")
def mixed(laboratory: Any) -> Any:
    """The laboratory, over two tables whose columns have unequal types."""
    return replace(laboratory, catalog=CATALOG, _plans={})


def _is_recomputed(equal: str, join: str) -> bool:
    """Tell whether a view has no rule for another reason: a double tells pairs apart, or `<=>` the groups."""
    pairs = ("full, with a further condition",) if ".x" in EQUAL[equal] else ()
    groups = _OF_GROUPS if "<=>" in EQUAL[equal] or EQUAL[equal] == "o.x = c.b" else ()
    return join in pairs or join in groups


def _incremental(laboratory: Any, sql: str) -> bool:
    return bool(explain(laboratory.plan(sql), split(laboratory.plan(sql), "view")).incremental)


@pytest.mark.spark
@pytest.mark.drawn(4)
@pytest.mark.parametrize("equal", EQUAL)
def test_every_kind_of_join_takes_values_for_equal_that_spark_does(equal: str, mixed: Any) -> None:
    """Damage: a row meets several keys that are one value to Spark, and comes or goes twice."""
    history = _history(sorted(EQUAL).index(equal))
    wrong = []
    for name, join in JOINS.items() if equal == WHOLE else ((name, JOINS[name]) for name in SOME):
        sql = join.format(EQUAL[equal])
        assert _incremental(mixed, sql) is not _is_recomputed(equal, name), name
        try:
            held = mixed.maintain(sql, history, (2, 3, 5))
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
            continue
        want = mixed.answers(sql, history)
        wrong += [f"{name} at {time}" for time in held if mixed.rounded(held[time]) != mixed.rounded(want[time])]
    assert not wrong, "\n".join(wrong)
