"""Reclocking gives each message the time that the definition gives it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidUsage
from strandline.frontier import EMPTY, MINIMUM, Frontier, Offsets
from strandline.sources import spec
from strandline.sources.reclock import Binding, Remap
from strandline.sources.remap import forgets_only_durable, only_grows

CASES = json.loads((Path(__file__).parent.parent / "cases" / "reclock.json").read_text())
PARTITIONS = ("0", "1", "2")


def remap_of(bindings):
    """Return the remap after minting these."""
    remap = Remap()
    for time, offsets in bindings:
        remap = remap.mint(time, Offsets(offsets))
    return remap


@pytest.mark.parametrize("case", CASES["times"], ids=lambda case: case["name"])
def test_each_message_of_the_known_cases_gets_its_time(case):
    """Damage: rows appear at another time than in every other implementation that was proven."""
    remap = remap_of(case["bindings"])
    if "since" in case:
        remap = remap.compact(Frontier(case["since"]))
    for partition, offset, time in case["messages"]:
        assert remap.time_of(partition, offset) == time


def test_offsets_map_to_the_first_time_that_needs_more():
    """Damage: a source says it is complete at a time whose messages it has not read."""
    case = CASES["frontier"]
    remap = remap_of(case["bindings"])
    assert remap.upper == Frontier(case["upper"])
    for offsets, time in case["maps"]:
        assert remap.frontier_of(Offsets(offsets)) == Frontier(time)


def test_compaction_to_a_binding_keeps_it_and_what_follows():
    """Damage: a restart after compaction reads from the beginning, or from too far on."""
    case = CASES["remap_since"]
    compacted = remap_of(case["mints"]).compact(Frontier(case["since"]))
    assert compacted.bindings == tuple(Binding(time, Offsets(o)) for time, o in case["bindings"])


moves = st.lists(
    st.tuples(st.integers(1, 4), st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 3), max_size=3)),
    max_size=8,
)
"""Steps of time, and by how much each partition moves in it: partitions come late, rest, and move in any order."""


def history(moves):
    """The bindings of a run, as the spec takes them and as the fast way has them."""
    bindings, remap, now, here = {}, Remap(), 0, dict.fromkeys(PARTITIONS, 0)
    for step, by in moves:
        now += step
        for partition, more in by.items():
            here[partition] += more
        bindings[now] = Offsets(here)
        remap = remap.mint(now, bindings[now])
    return bindings, remap


def messages(remap):
    """All messages that are bound, and one of each partition that is not yet."""
    return [(p, o) for p in PARTITIONS for o in range(remap.frontier[p] + 1)]


@given(moves)
def test_the_fast_way_is_the_definition(moves):
    """Law R2.  Damage: a row is at a wrong time, so two views disagree at an instant."""
    bindings, remap = history(moves)
    for time in bindings:
        assert spec.target(bindings, time, messages(remap)) == [
            message for message in messages(remap) if remap.time_of(*message) == time
        ]


@given(moves)
def test_each_bound_message_has_one_time_and_the_others_none(moves):
    """Law R3.  Damage: a row is counted twice, or never."""
    bindings, remap = history(moves)
    found = Counter(u for time in bindings for u in spec.target(bindings, time, messages(remap)))
    for message in messages(remap):
        bound = remap.frontier.covers(*message)
        assert found[message] == bound
        assert (remap.time_of(*message) is not None) == bound


@given(moves, st.data())
def test_slices_hold_exactly_the_messages_of_their_times(moves, data):
    """Damage: the range that is read for a time is not the range that happened at it."""
    _, remap = history(moves)
    top = remap.upper.at
    lower = data.draw(st.integers(0, top), "lower")
    upper = data.draw(st.integers(lower, top), "upper")
    read = {}
    for each in remap.slices(Frontier(lower), Frontier(upper)):
        for partition in PARTITIONS:
            for offset in range(each.lower[partition], each.upper[partition]):
                assert (partition, offset) not in read
                read[partition, offset] = each.time
    times = {message: remap.time_of(*message) for message in messages(remap)}
    assert read == {message: t for message, t in times.items() if t is not None and lower <= t < upper}


@given(moves, st.data())
def test_compaction_commutes_with_reclocking(moves, data):
    """Damage: compacting a source's bindings changes what a reader of compacted data sees."""
    _, remap = history([(1, {}), *moves])
    since = Frontier(data.draw(st.integers(0, remap.upper.at - 1), "since"))
    compacted = remap.compact(since)
    assert only_grows(remap, compacted)
    for message in messages(remap):
        time = remap.time_of(*message)
        assert compacted.time_of(*message) == (None if time is None else since.advance(time))


@given(moves, st.data())
def test_what_upstream_may_forget_is_durable_and_everything_durable_may_be_forgotten(moves, data):
    """Law R4.  Damage: upstream forgets a message that a restart needs; or it never forgets, and its disk fills."""
    _, remap = history(moves)
    durable = Frontier(data.draw(st.integers(0, remap.upper.at), "durable"))
    resume = remap.resume([durable, remap.upper, EMPTY])
    assert forgets_only_durable(resume, remap, durable)
    for message in messages(remap):
        time = remap.time_of(*message)
        assert resume.covers(*message) == (time is not None and not durable.beyond(time))


@given(moves, st.data())
def test_compaction_one_step_below_the_durable_upper_keeps_the_point_of_resumption(moves, data):
    """Damage: after compaction a restart resumes elsewhere."""
    _, remap = history([(1, {}), *moves])
    durable = Frontier(data.draw(st.integers(1, remap.upper.at), "durable"))
    compacted = remap.compact(Frontier(durable.at - 1))
    assert compacted.resume([durable]) == remap.resume([durable])
    assert compacted.slices(durable, remap.upper) == remap.slices(durable, remap.upper)


def test_resuming_before_since_is_refused():
    """Damage: a restart silently reads everything again, into a shard that has it."""
    compacted = remap_of([(1000, {"0": 3}), (2000, {"0": 5})]).compact(Frontier(1999))
    with pytest.raises(InvalidUsage, match="compacted to"):
        compacted.resume([Frontier(1500)])


def test_a_time_is_bound_once_and_bindings_never_go_back():
    """Law R1.  Damage: the messages of a time that was read already change."""
    remap = remap_of([(1000, {"0": 3, "1": 1})])
    with pytest.raises(InvalidUsage, match="bound already"):
        remap.mint(1000, Offsets({"0": 9}))
    later = remap.mint(2000, Offsets({"0": 2, "1": 4}))
    assert later.frontier == Offsets({"0": 3, "1": 4})
    with pytest.raises(ValueError, match="R1"):
        Remap((Binding(1, Offsets({"0": 2})), Binding(2, Offsets({"0": 1}))), Frontier(3))
    assert only_grows(remap, later)
    assert not only_grows(later, remap)
    assert not only_grows(remap, Remap((Binding(999, Offsets({"0": 4})),), Frontier(3000)))


@pytest.mark.parametrize("known", range(3))
@pytest.mark.parametrize("new", [1, 2, 3])
def test_no_binding_goes_back_wherever_the_known_ones_end(known, new):
    """Law R1.  Damage: what another process read for a time is read for another time here."""
    for offsets in itertools.product(range(3), repeat=known + new):
        bindings = [Binding(time, Offsets({"0": offset})) for time, offset in enumerate(offsets, 1)]
        if list(offsets[:known]) != sorted(offsets[:known]):
            continue
        remap = Remap(bindings[:known], Frontier(known + 1))
        if list(offsets) == sorted(offsets):
            grown = remap.extended(bindings[known:], Frontier(len(offsets) + 1))
            assert grown.bindings == tuple(bindings)
        else:
            with pytest.raises(ValueError, match="R1"):
                remap.extended(bindings[known:], Frontier(len(offsets) + 1))


def test_compaction_keeps_the_newest_binding_distinguishable():
    """Damage: nothing is left to resume from."""
    remap = remap_of([(1000, {"0": 3})])
    for since in (Frontier(1001), EMPTY):
        with pytest.raises(InvalidUsage, match="cannot be compacted"):
            remap.compact(since)
    assert remap.compact(MINIMUM) == remap


def test_a_slice_beyond_what_is_bound_is_refused():
    """Damage: data of a time become durable before its binding, so a restart may bind it otherwise."""
    with pytest.raises(InvalidUsage, match="known up to"):
        remap_of([(1000, {"0": 3})]).slices(MINIMUM, Frontier(1002))


@given(moves, st.data())
def test_the_definition_over_compacted_bindings_is_the_compacted_definition(moves, data):
    """``compact(reclock(remap, src)) = reclock(compact(remap), src)``, by the spec on both sides.

    Damage: a source that was compacted, and one that was not, disagree about when a message happened.
    """
    bindings, remap = history([(1, {}), *moves])
    since = Frontier(data.draw(st.integers(0, remap.upper.at - 1), "since"))

    def reclocked(bindings):
        return {u: time for time in bindings for u in spec.target(bindings, time, messages(remap))}

    compacted = {binding.time: binding.offsets for binding in remap.compact(since).bindings}
    assert reclocked(compacted) == {u: since.advance(time) for u, time in reclocked(bindings).items()}


@given(moves, st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 9)))
def test_the_first_covering_binding_is_the_first_that_covers_all_of_it(moves, wanted):
    """Damage: a snapshot is dated before what it holds had happened, or a table is never begun."""
    _, remap = history(moves)
    covering = [binding for binding in remap.bindings if Offsets(wanted) <= binding.offsets]
    assert remap.first_covering(Offsets(wanted)) == (covering[0] if covering else None)
