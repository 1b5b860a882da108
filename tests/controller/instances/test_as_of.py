"""Dataflows begin when the known cases say, which are data, and when a search of all times finds that they should."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from strandline.controller.instances import as_of
from strandline.controller.instances.as_of import Dataflow, Lag, Policy, Stored, ValidFrom
from strandline.errors import InvalidUsage
from strandline.frontier import EMPTY, Frontier

CASES = json.loads((Path(__file__).parents[2] / "cases" / "as_of_selection.json").read_text())["cases"]
SEEDS = 1_000
SEEDS_OF_A_PLANTED_BUG = 200
TIMES = range(8)
"""All times of random problems: the search tries each of them for each dataflow."""


def stored(since: int | None, upper: int | None) -> Stored:
    """Return how far a collection is; None: the empty frontier."""
    return Stored(Frontier(since), Frontier(upper))


def policy(said: Mapping[str, object]) -> Policy:
    """Return the policy that a case states."""
    match said:
        case {"lag": [int(lag), int(grain)]}:
            return Lag(lag, grain)
        case {"valid_from": int(at)}:
            return ValidFrom(at)
    raise AssertionError(said)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_dataflows_begin_when_the_cases_say(case) -> None:
    """Damage: an index is readable later than it could be, or a view skips times that it has not written."""
    found = as_of.select(
        [Dataflow(name, tuple(inputs)) for name, inputs, _ in case["dataflows"]],
        {name: stored(*frontiers) for name, frontiers in case["storage"].items()},
        case["now"],
        {name: policy(said) for name, said in case.get("policies", {}).items()},
        read_only=case.get("read_only", False),
    )
    assert {name: found.as_ofs[name].at for name in found.as_ofs} == {name: at for name, _, at in case["dataflows"]}
    assert found.refused == {}


# ---- the same by searching all times ---------------------------------------------------------------------------------


class Search:
    """The selection from its declaration: all assignments of times, of which each constraint in turn leaves some."""

    def __init__(
        self, dataflows: Sequence[Dataflow], storage: Mapping[str, Stored], now: int, policies: Mapping[str, Policy]
    ) -> None:
        self.inputs = {each.id: each.inputs for each in dataflows}
        self.storage = storage
        self.now = now
        self.policies = policies

    def found(self) -> tuple[dict[str, int | None], set[str]]:
        """Return the as_ofs, and what is refused."""
        sealed = {name for name in self.inputs if name in self.storage and EMPTY in self.frontiers(name)}
        dropped = {
            name for name in self.inputs if any(self.storage[each].since.empty for each in self.stored_inputs(name))
        }
        rest = [name for name in self.inputs if name not in sealed | dropped]
        gaps = {name for name in rest if name in self.storage and not self.assignments([name, *self.indexes(name)])}
        rest = [name for name in rest if name not in gaps]
        left = self.assignments(rest)
        for name, bound in self.soft(rest):
            least = min(each[name] for each in left)
            left = [each for each in left if each[name] <= max(bound, least)]
        latest = {name: max(each[name] for each in left) for name in rest}
        assert latest in left, "no assignment is the latest one for all"
        return {name: latest.get(name) for name in self.inputs}, (dropped | gaps) - sealed

    def frontiers(self, name: str) -> tuple[Frontier, Frontier]:
        return self.storage[name].since, self.storage[name].upper

    def indexes(self, name: str) -> list[str]:
        """Return the indexes that ``name`` reads, also through others."""
        direct = [each for each in self.inputs[name] if each not in self.storage]
        return sorted({*direct, *(far for each in direct for far in self.indexes(each))})

    def stored_inputs(self, name: str) -> set[str]:
        """Return the stored collections that ``name`` reads, also through indexes."""
        return {each for reader in (name, *self.indexes(name)) for each in self.inputs[reader] if each in self.storage}

    def assignments(self, names: Sequence[str]) -> list[dict[str, int]]:
        """Return the assignments of times to ``names`` that satisfy the hard constraints."""
        every = (dict(zip(names, times, strict=True)) for times in product(TIMES, repeat=len(names)))
        return [each for each in every if all(self.right(name, each) for name in names)]

    def right(self, name: str, at: Mapping[str, int]) -> bool:
        """Return whether ``name`` can read its inputs, and leaves no gap in what it writes."""
        for each in self.inputs[name]:
            if at[name] < (self.storage[each].since.at if each in self.storage else at[each]):
                return False
        if name not in self.storage or self.storage[name] == stored(0, 0):
            return True
        since, upper = self.frontiers(name)
        return at[name] < upper.at or at[name] <= since.at

    def soft(self, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Yield the soft constraints of ``names``, of each kind after those of the kind before."""
        uppers = {
            name: [up.at for up in (self.storage[each].upper for each in self.stored_inputs(name)) if up.at is not None]
            for name in names
        }
        for name in names:
            yield from ((name, upper - 1) for upper in uppers[name])
        for name in names:
            if name not in self.storage and name in self.policies:
                yield name, self.policies[name].since(min(uppers[name], default=self.now))
        for name in names:
            if name not in self.storage or (not uppers[name] and self.storage[name] == stored(0, 0)):
                yield name, self.now


def some_problem(chance: random.Random) -> tuple[list[Dataflow], dict[str, Stored], int, dict[str, Policy]]:
    """Return a few dataflows over a few collections, in any order."""
    storage = {}
    for name in ("s", "t", *(each for each in ("a", "b", "c", "d") if chance.random() < 0.4)):
        since, upper = chance.randint(0, 5), chance.randint(0, 7)
        storage[name] = stored(
            None if chance.random() < 0.06 else since, None if chance.random() < 0.15 else max(upper, 1)
        )
        if name not in "st" and chance.random() < 0.3:
            storage[name] = stored(0, 0)
    dataflows = []
    for place, name in enumerate("abcd"[: chance.randint(1, 4)]):
        able = [*"st", *"abcd"[:place]]
        dataflows.append(Dataflow(name, tuple(chance.sample(able, min(len(able), chance.choice([0, 1, 1, 2, 2]))))))
    policies: dict[str, Policy] = {
        each.id: chance.choice([Lag(chance.randint(0, 4), chance.randint(1, 3)), ValidFrom(chance.randint(0, 7))])
        for each in dataflows
        if chance.random() < 0.4
    }
    chance.shuffle(dataflows)
    return dataflows, storage, chance.randint(0, 7), policies


def differs(seed: int) -> bool:
    """Return whether selection finds something else than the search."""
    problem = some_problem(random.Random(seed))
    found = as_of.select(*problem)
    return ({name: each.at for name, each in found.as_ofs.items()}, set(found.refused)) != Search(*problem).found()


def test_dataflows_begin_when_a_search_of_all_times_says() -> None:
    """Damage: with some combination of bounds an index reads what is compacted, or a view leaves a gap."""
    assert [seed for seed in range(SEEDS) if differs(seed)] == []


least, bounds_of_index, last_without_gap = as_of.join, as_of._of_index, as_of._last_without_gap
WRONG: Mapping[str, tuple[str, Callable[..., object]]] = {
    "the upper itself is complete": ("_before", lambda upper: upper),
    "what is sealed bounds at the end of time": ("_before", lambda upper: Frontier(max(0, (upper.at or 99) - 1))),
    "one input is enough": ("join", as_of.meet),
    "the latest bound counts": ("meet", lambda bounds: max(bounds, default=EMPTY)),
    "a sink may leave a gap": ("_last_without_gap", lambda own: EMPTY),
    "a new sink continues from the minimum": (
        "_last_without_gap",
        lambda own: max(as_of._before(own.upper), own.since),
    ),
    "readers before since notice gaps": ("_last_without_gap", lambda own: as_of._before(own.upper)),
    "an index need not be current": ("_of_index", lambda upper, now, policy: bounds_of_index(upper, now, policy)[1:]),
    "policies are ignored": ("_of_index", lambda upper, now, policy: bounds_of_index(upper, now, None)),
    "a lag behind nothing is none": ("_of_index", lambda upper, now, policy: bounds_of_index(upper, 7, policy)),
    "inputs are in order already": ("_inputs_first", lambda dataflows, storage: sorted(dataflows, key=str)[::-1]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_selection_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that agrees with wrong rules says nothing about the right ones."""
    monkeypatch.setattr(as_of, *WRONG[wrong])
    assert any(differs(seed) for seed in range(SEEDS_OF_A_PLANTED_BUG))


# ---- single claims ---------------------------------------------------------------------------------------------------


def test_neither_the_order_of_dataflows_nor_that_of_inputs_matters() -> None:
    """Damage: after a restart that lists the catalog in another order, indexes begin at other times."""
    for seed in range(200):
        chance = random.Random(seed)
        dataflows, storage, now, policies = some_problem(chance)
        shuffled = [Dataflow(each.id, tuple(chance.sample(each.inputs, len(each.inputs)))) for each in dataflows]
        first = as_of.select(dataflows, storage, now, policies)
        again = as_of.select(chance.sample(shuffled, len(shuffled)), storage, now, policies)
        assert (first.as_ofs, first.refused.keys()) == (again.as_ofs, again.refused.keys())


def test_a_sink_that_would_leave_a_gap_is_refused_and_holds_up_nothing_else() -> None:
    """Damage: one view whose inputs have forgotten too much keeps all others from running, or goes on with a gap."""
    of = {"s": stored(10, 20), "v": stored(0, 5), "w": stored(10, 13)}
    found = as_of.select([Dataflow("i", ("s",)), Dataflow("v", ("i",)), Dataflow("w", ("i",))], of, now=100)
    assert found.as_ofs == {"i": Frontier(12), "v": EMPTY, "w": Frontier(12)}
    assert found.refused == {
        "v": "v must begin at [4] or earlier to continue its collection, and its inputs are readable from [10] on"
    }


@pytest.mark.parametrize("read_only", [False, True])
def test_what_reads_a_dropped_collection_is_refused_unless_another_writer_may_have_dropped_it(read_only: bool) -> None:
    """Damage: a dropped input goes unnoticed; or a new version reports problems that only a race explains."""
    of = {"s": stored(None, None), "t": stored(3, 9)}
    dataflows = [Dataflow("i", ("s",)), Dataflow("j", ("t", "i")), Dataflow("k", ("t",))]
    found = as_of.select(dataflows, of, now=5, read_only=read_only)
    assert found.as_ofs == {"i": EMPTY, "j": EMPTY, "k": Frontier(5)}
    why = "which is dropped or reads what is dropped"
    assert found.refused == ({} if read_only else {"i": f"i reads s, {why}", "j": f"j reads i, {why}"})


def test_a_new_sink_begins_at_the_last_complete_time_of_its_inputs() -> None:
    """Damage: a new view waits for an input, or is refused because its own collection is at the minimum."""
    of = {"s": stored(10, 20), "t": stored(5, 30), "v": stored(0, 0)}
    assert as_of.select([Dataflow("v", ("s", "t"))], of, now=100).as_ofs == {"v": Frontier(19)}


@pytest.mark.parametrize(("since", "as_of_found"), [(10, 50), (70, 70)])
def test_a_new_sink_of_sealed_inputs_begins_now(since: int, as_of_found: int) -> None:
    """Damage: a view of what never changes again never runs."""
    of = {"s": stored(since, None), "v": stored(0, 0)}
    assert as_of.select([Dataflow("v", ("s",))], of, now=50).as_ofs == {"v": Frontier(as_of_found)}


def test_a_sink_that_was_opened_and_has_written_nothing_begins_where_it_was_opened() -> None:
    """Damage: a crash between opening a view's shard and its first step leaves a view that is refused for ever."""
    of = {"s": stored(10, 20), "v": stored(14, 14)}
    assert as_of.select([Dataflow("v", ("s",))], of, now=50).as_ofs == {"v": Frontier(14)}


def test_a_sealed_sink_does_not_hold_back_the_index_that_it_read() -> None:
    """Damage: an index begins as early as a view that is complete once did, and replays everything since."""
    of = {"s": stored(10, 20), "v": stored(10, None)}
    found = as_of.select([Dataflow("i", ("s",)), Dataflow("v", ("i",))], of, now=100)
    assert found.as_ofs == {"i": Frontier(19), "v": EMPTY}


def test_what_is_read_must_be_known() -> None:
    """Damage: an index begins before what it reads can be read, because its input was overlooked."""
    with pytest.raises(InvalidUsage, match="i reads t, which is neither stored nor a dataflow"):
        as_of.select([Dataflow("i", ("t",))], {}, now=5)
    with pytest.raises(InvalidUsage, match="in a circle"):
        as_of.select([Dataflow("i", ("j",)), Dataflow("j", ("i",))], {}, now=5)
