"""Rows and errors are a function of the inputs: random views over rows that fail, kept in different ways, agree.

Of each history the same views are kept by two houses: one from the start, in steps of random width, reopened now and
then; the other made later, over what the inputs hold then, and kept in steps of its own.  Inputs have errors of their
own, some of which are forgiven.  At each time that both know they have the same rows and the same errors, as many of
each.  So has what another process keeps, which orders sets and names otherwise.

Sharper than a comparison with plain Spark: a view whose care depends on how it came to a time shows here.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from house import INPUTS, LAST, House, failures_of, history_of
from random_plans import VIEWS, RandomPlans, views_of

from strandline.algebra import judged
from strandline.algebra.nodes import Reduce
from strandline.algebra.scalar import scalar
from strandline.compute.stage import split


def keep(house: House, seed: int, chance: random.Random, first: int) -> None:
    """Let a house follow a history to its end, the first step to ``first``; it is reopened now and then."""
    history, lower = history_of(seed), 0
    while lower <= LAST:
        upper = first if lower == 0 else min(LAST + 1, lower + chance.randint(1, 3))
        house.write(history, lower, upper)
        if chance.random() < 0.3:
            house.open()
        house.tick(upper)
        lower = upper


def agree(seed: int) -> int:
    """Keep random views in two ways, and assert that they agree; return how many errors there were."""
    chance = random.Random(seed)
    views = views_of(chance)
    failures, forgiven = failures_of(seed), frozenset(name for name in INPUTS if chance.random() < 0.2)
    one, other = (House(views, failures=failures, forgiven=forgiven) for _ in range(2))
    made = chance.randint(1, LAST - 1)
    keep(one, seed, chance, 1)
    keep(other, seed, chance, made)
    errors = 0
    for name, view in views.items():
        for time in range(made - 1, LAST + 1):
            kept, afresh = one.at(name, time), other.at(name, time)
            assert kept == afresh, f"seed {seed}, {name} at {time}: {kept} is kept, and {afresh} afresh\n{view.plan}"
            errors += sum(kept[1].values())
            inherited = {error for each in view.imports for error in standing(failures[each], time)}
            excused = {error for each in forgiven for error in standing(failures[each], time)}
            assert (inherited - excused) <= kept[1].keys(), f"seed {seed}, {name} at {time} lacks errors of its inputs"
            assert not excused & kept[1].keys(), f"seed {seed}, {name} at {time} has errors that are forgiven"
    return errors


def standing(failures: Iterable[tuple[str, int, int]], time: int) -> Counter[str]:
    """Return the errors that an input has at ``time``."""
    found: Counter[str] = Counter()
    for error, at, diff in failures:
        found[error] += diff if at <= time else 0
    return +found


def lazily(seed: int, branches: int) -> list[tuple[Counter[tuple[Any, ...]], int]]:
    """Return the rows of random views at each time, and how many errors, if joins of more branches are computed.

    Without anti joins: a row that is taken away below a join has no part in it, and one that is not leaves two errors.
    """
    chance = random.Random(seed)
    views = {f"v{n}": RandomPlans(chance, takes_away=False).view() for n in range(VIEWS)}
    house = House(views)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judged, "PRODUCTS_MAX", branches)
        keep(house, seed, random.Random(seed), 1)
    halves = [house.at(name, time) for name in views for time in range(LAST + 1)]
    return [(rows, sum(errors.values())) for rows, errors in halves]


def told(seed: int, steps: int) -> list[str]:
    """Return what views hold at each time, as text, when they are kept in the steps that ``steps`` draws."""
    views = views_of(random.Random(seed))
    house = House(views)
    keep(house, seed, random.Random(steps), 1)
    halves = ((name, time, *house.at(name, time)) for name in views for time in range(LAST + 1))
    return [f"{seed} {name} {time} {sorted(map(repr, r.items()))} {sorted(e.items())}" for name, time, r, e in halves]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 60, 10)], ids=str)
def test_rows_and_errors_do_not_depend_on_how_a_view_was_kept(seeds: range) -> None:
    """Damage: a view has an answer or an error by chance, and two replicas correct each other for ever."""
    assert sum(map(agree, seeds)), "no row failed, so this shows nothing"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 40, 10)], ids=str)
def test_a_side_that_is_computed_below_a_join_fails_no_more_than_one_that_is_not(seeds: range) -> None:
    """Damage: a view over many unions has errors for rows that its join drops, or for values that nothing needs."""
    for seed in seeds:
        assert lazily(seed, 1) == lazily(seed, judged.PRODUCTS_MAX), seed


def test_another_process_has_the_same_rows_and_errors() -> None:
    """Damage: two replicas correct each other for ever, because of an order that differs between processes."""
    seeds, elsewhere = range(0, 60, 12), {**os.environ, "PYTHONHASHSEED": "4711"}
    program = f"import test_definite_errors as t; print(*(x for s in {seeds} for x in t.told(s, s + 1)), sep='\\n')"
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", program]
    theirs = subprocess.run(command, env={**elsewhere, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    ours = [line for seed in seeds for line in told(seed, seed)]
    assert theirs.stdout.splitlines() == ours
    assert any(not line.endswith("[]") for line in ours), "no row failed, so this shows nothing"


def test_a_careful_plan_that_counts_rows_which_are_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the comparison sees no difference between a plan that fails and one that must not."""
    monkeypatch.setattr(judged, "possibly", lambda _: scalar("true"))
    with pytest.raises(AssertionError, match="is kept, and"):
        for seed in range(60):
            agree(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(60, 1_060, 50)], ids=str)
def test_rows_and_errors_do_not_depend_on_how_very_many_views_were_kept(seeds: range) -> None:
    """The same over four thousand views."""
    assert sum(map(agree, seeds))


def test_no_view_here_is_one_stage_only() -> None:
    """Damage: the views are too simple to come to a time in different ways."""
    views = [RandomPlans(random.Random(seed)).view() for seed in range(60)]
    assert any(len(split(view, "v")) > 1 for view in views)
    assert any(isinstance(view.plan, Reduce) for view in views)
