"""Sums and averages of wide decimals are kept by sums, and are what Spark says to the last digit."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any, Final

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.compute.stage import split

TYPES: Final = ("decimal(15,2)", "decimal(20,0)", "decimal(27,9)", "decimal(32,4)", "decimal(32,9)", "decimal(38,0)",
                "decimal(38,6)", "decimal(38,18)", "decimal(38,37)")  # fmt: skip
AVERAGED: Final = TYPES[1:5]
"""Those whose averages are kept too."""
WIDE: Final = Schema((Column("k", "int"), *(Column(f"d{n}", type_) for n, type_ in enumerate(TYPES))))


def _value(type_: str, chance: random.Random) -> Decimal | None:
    """Return a value of a type: NULL, the least one, a great one (ten of which still have a sum), or any."""
    digits, fraction = map(int, type_[8:-1].split(","))
    room = digits - 2
    units = chance.choice([None, 1, -1, 10**room - 1, 1 - 10**room, chance.randrange(-(10**room), 10**room)])
    with localcontext(prec=40):
        return None if units is None else Decimal(units).scaleb(-fraction)


def _history(seed: int, times: tuple[int, ...]) -> dict[tuple[Any, int], int]:
    chance, held, updates = random.Random(seed), Counter[Any](), Counter[Any]()
    for time in times:
        for row in chance.sample(list(held.elements()), len(list(held.elements())) // 2):
            held[row] -= 1
            updates[row, time] -= 1
        for _ in range(chance.randint(1, 3)):
            row, count = (
                (chance.choice([1, 2, None]), *(_value(type_, chance) for type_ in TYPES)),
                chance.choice([1, 2]),
            )
            held[row] += count
            updates[row, time] += count
    return {key: diff for key, diff in updates.items() if diff}


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(3))
def test_sums_and_averages_of_wide_decimals_are_kept_exactly(seed: int, laboratory: Any) -> None:
    """Damage: a revenue of three factors reads whole groups again at each tick; or is wrong in its last digits."""
    wide = replace(laboratory, catalog={"wide": WIDE}, _plans={})
    items = [f"sum(d{n}) AS s{n}" for n in range(len(TYPES))]
    items += [f"avg(d{TYPES.index(type_)}) AS a{TYPES.index(type_)}" for type_ in AVERAGED]
    sql = f"SELECT k, {', '.join(items)} FROM wide GROUP BY k"
    assert [stage.kind for stage in split(wide.plan(sql), "view")] == ["accumulate", "linear"]
    history = {"wide": _history(seed, wide.times)}
    want = wide.answers(sql, history)
    for time, held in wide.maintain(sql, history, (2, 3, 5)).items():
        assert wide.rounded(held) == wide.rounded(want[time]), f"time {time}"
