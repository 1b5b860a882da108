"""The demo's proof compares multisets both ways, floats to 12 significant digits: what it calls equal is equal."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal

import pytest

from strandline.cli.demo import data, proof
from strandline.cli.demo.proof import Difference, difference


@pytest.mark.parametrize(
    ("found", "wanted", "missing", "extra"),
    [
        ([(1, "a")], [(1, "a")], 0, 0),
        ([(1, "a"), (1, "a")], [(1, "a")], 0, 1),
        ([(1, "a")], [(1, "a"), (1, "a")], 1, 0),
        ([(1, None)], [(1, "a")], 1, 1),
        ([(1, 0.5)], [(1, 0.5 + 1e-13)], 0, 0),
        ([(1, 0.5)], [(1, 0.5 + 1e-10)], 1, 1),
        ([(1, 0.5)], [(2, 0.5 + 1e-13)], 1, 1),
        ([(1, 0.5), (1, 0.5)], [(1, 0.5 + 1e-13)], 0, 1),
        ([(float("nan"),)], [(float("nan"),)], 0, 0),
        ([(0.5,)], [(None,)], 1, 1),
        ([(Decimal("0.10"),)], [(Decimal("0.1"),)], 0, 0),
        ([(dt.date(2013, 1, 1),)], [(dt.date(2013, 1, 2),)], 1, 1),
        ([], [], 0, 0),
    ],
)
def test_differences_are_counted_both_ways(found, wanted, missing, extra):
    """A proof that overlooks a difference would prove nothing."""
    assert difference("v", found, wanted) == Difference("v", missing, extra)


@pytest.fixture(scope="module")
def flights():
    """All that the package holds."""
    return data.load()


def test_every_flight_and_every_hour_of_weather_arrives_once(flights):
    """The demo would run on less than it says."""
    steps = data.schedule(flights)
    arrived = Counter()
    for step in steps:
        assert step.rows == sum(content.count("\n") - 1 for _, _, content in step.files)
        for source, name, content in step.files:
            arrived[source] += (content.count("\n") - 1) * (-1 if name.endswith(".retract.csv") else 1)
    assert (arrived["flights"], arrived["weather"]) == (336_776, 26_115)
    assert len(steps) == 1 + 31
    assert [step.kill for step in steps].count(True) == 1


@pytest.mark.parametrize("days", range(1, 32))
def test_every_slice_has_a_kill_a_renamed_airline_and_a_corrected_day_that_came_before(flights, days):
    """A short demo would leave out what makes it hard."""
    steps = data.schedule(flights, days=days, months=1)
    assert sum(step.kill for step in steps) == 1
    assert sum(bool(step.statements) for step in steps) == 1
    names = [name for step in steps for source, name, _ in step.files if source == "flights"]
    (retracted,) = [name for name in names if name.endswith(".retract.csv")]
    assert names.index(retracted.replace(".retract", "")) < names.index(retracted)
    content = {name: body for step in steps for source, name, body in step.files if source == "flights"}
    assert content[retracted] == content[retracted.replace(".retract", "")]
    corrected = content[retracted.replace("retract", "corrected")]
    assert corrected != content[retracted]
    assert corrected.count("\n") == content[retracted].count("\n")


def test_the_proof_reads_what_its_views_are_called():
    """A view that is never looked at would count as verified."""
    assert set(proof.VIEWS) == {"delays", "routes", "storms"}
