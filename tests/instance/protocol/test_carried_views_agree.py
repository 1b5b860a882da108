"""Plans that were sent to a replica give the same updates as those that the controller made."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import house
import pytest
from house import LAST, House, failures_of, history_of
from random_plans import views_of
from tests.instance.protocol.samples import dataflow

from strandline.compute.plan.view import PlannedView
from strandline.compute.stage import Stage
from strandline.instance.commands import RunDataflow
from strandline.instance.protocol.codec import decode, encode
from strandline.instance.protocol.messages import Create

HISTORIES: Final = 24
"""Each has four views."""
BATCH: Final = 8
MORE: Final = range(HISTORIES, HISTORIES + 160, BATCH)


def carried(view: PlannedView, name: str, *_: object) -> Sequence[Stage]:
    """Return the stages of a view as a replica has them that was sent its command."""
    found = decode(encode(dataflow(name, view)))
    assert isinstance(found, Create)
    assert isinstance(found.what, RunDataflow)
    return found.what.stages


def kept(seed: int) -> dict[str, Counter[Any]]:
    """Return all updates of some views, and of their stages, once a history was followed in steps of several sizes."""
    chance = random.Random(seed)
    site = House(views_of(chance), failures=failures_of(seed))
    history, lower = history_of(seed), 0
    while lower <= LAST:
        upper = min(LAST + 1, lower + chance.choice([1, 1, 2, 4]))
        site.write(history, lower, upper)
        site.tick(upper)
        lower = upper
    return {run.name: site.updates(run.name) for run in site.runs}


def agree(seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Fail unless what was sent gives the same updates; return how many there were."""
    own = {seed: kept(seed) for seed in seeds}
    monkeypatch.setattr(house, "split", carried)
    for seed in seeds:
        assert kept(seed) == own[seed], f"views of seed {seed}"
    return sum(len(found) for each in own.values() for found in each.values())


def test_what_was_carried_gives_the_same_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a replica in another process writes other contents than one beside the controller."""
    assert agree(range(HISTORIES), monkeypatch) > HISTORIES


@pytest.mark.drawn(10)
@pytest.mark.parametrize("first", MORE)
def test_what_was_carried_of_many_views_gives_the_same_updates(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: as above, for a shape of plan that is rare."""
    agree(range(first, first + BATCH), monkeypatch)
