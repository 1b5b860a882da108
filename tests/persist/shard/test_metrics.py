"""Each counter of persist has an event that moves it, and no counter moves without a failure."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from strandline.errors import CorruptionError
from strandline.frontier import Frontier
from strandline.persist.shard.patience import Metrics
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync


@pytest.fixture
def opened(place):
    """A process with the shard open, and what it has counted."""
    client = place.client()
    return place.writer(client=client), client.metrics


def moved(metrics):
    """The counters that are not zero."""
    return {name: count for name, count in metrics.counts().items() if count}


def test_nothing_is_counted_where_nothing_goes_wrong(place, opened):
    """Damage: an operator learns to ignore the counters."""
    writer, metrics = opened
    for time in range(3):
        place.append(writer, time, time + 1, [["a", time, 1]])
    assert moved(metrics) == {}


def test_a_refused_call_is_a_retry(place, opened):
    """Damage: a store that fails every other time looks like one that is slow."""
    writer, metrics = opened
    place.plan.extend([Outcome.REFUSED] * 3)
    place.append(writer, 0, 1)
    assert moved(metrics) == {"retries": 3}


def test_an_unknown_outcome_that_had_happened_is_a_witness_hit(place, opened):
    """Damage: no figure shows how often only the witness prevented a second append."""
    writer, metrics = opened
    place.plan.append(Outcome.DONE_UNREPORTED)
    place.append(writer, 0, 1, [["a", 0, 1]])
    assert moved(metrics) == {"retries": 1, "indeterminate": 1, "witness_hits": 1}


def test_an_unknown_outcome_that_had_not_happened_is_none(place, opened):
    """Damage: the counter counts a commit that never landed."""
    writer, metrics = opened
    place.plan.append(Outcome.LOST)
    place.append(writer, 0, 1, [["a", 0, 1]])
    assert moved(metrics) == {"retries": 1, "indeterminate": 1}


def test_an_unknown_outcome_for_many_shards_is_one_and_each_commit_found_is_a_hit(place):
    """Damage: a tick over fifty shards looks like fifty lost answers."""
    client = place.client()
    writers = [place.writer(shard, client=client) for shard in ("s", "t", "u")]
    place.plan.append(Outcome.DONE_UNREPORTED)
    run_sync(client.advance_many([(each, Frontier(5), "") for each in writers]))
    assert moved(client.metrics) == {"retries": 4, "indeterminate": 1, "witness_hits": 3}


def test_a_lost_race_is_a_retry(place, opened):
    """Damage: contention is invisible."""
    writer, metrics = opened
    place.append(place.writer(), 0, 1)
    assert place.append(writer, 0, 1).actual == Frontier(1)
    assert moved(metrics) == {"retries": 1}


def test_a_damaged_object_is_counted_where_it_is_met(place, opened):
    """Damage: corruption shows in one error message, and nowhere else."""
    place.append(opened[0], 0, 1, [["a", 0, 1]])
    for key in [key for key in place.objects if "/rollup/" in key]:
        place.objects[key] = place.objects[key][:-1]
    late = place.client()
    with pytest.raises(CorruptionError):
        run_sync(late.reader("s", place.schema, "orders"))
    assert moved(late.metrics) == {"corruption_errors": 1}


def test_merges_and_collections_are_counted_and_so_is_what_they_delete(place):
    """Damage: maintenance that never happens looks like maintenance that is not needed."""
    client = place.client(place.engine, rollup_every=2, grace_ms=0)
    writer = place.writer(client=client)
    for time in range(40):
        staged = place.stage("s", time, time + 1, [[f"row {time}", time, 1]], inline=0)
        run_sync(writer.compare_and_append([staged], Frontier(time), Frontier(time + 1)))
    counted = moved(client.metrics)
    assert counted["compactions"] > 1
    assert counted["gc_runs"] > 1
    left = sum("/parts/" in key for key in place.objects)
    assert counted["parts_deleted"] >= 40 - left


def test_every_counter_is_explained():
    """Damage: an operator cannot act on an unexplained counter."""
    page = Path(__file__).parents[3].joinpath("docs", "operations.md").read_text()
    assert [field.name for field in fields(Metrics) if field.name.replace("_", " ") not in page] == []
