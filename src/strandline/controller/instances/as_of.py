"""As_of selection: the times at which dataflows begin, given how far their inputs and outputs are.

A *dataflow* is an *index* (it keeps its contents in memory) or a *sink* (it writes the stored collection of the same
id).  It begins at its ``as_of``: it reads its inputs there, and its contents are exact from there on.  An input is a
stored collection, read from its shard, or else an index, read from memory.

Hard constraints keep contents right:

- H1: ``as_of >= since`` of each stored input, and ``as_of >= as_of`` of each index that is read.
- H2: for a sink ``as_of < upper`` of its own collection, so that what it writes follows what is stored without a gap.
  Below the collection's since no reader notices a gap, so ``as_of <= since`` is enough.  A collection at the minimum
  was never begun, and constrains nothing.

Soft constraints keep dataflows useful.  All of them are upper bounds:

- S1, warm-up: ``as_of < upper`` of each stored input, also of those read through indexes.  The dataflow can compute its
  contents at once and need not wait for an input.
- S2, read policy of an index: its past stays readable as far back as the policy asks.
- S3, current time, for an index: ``as_of <= now``.  A query of this moment can use it.
- S4: what no other constraint bounds from above begins at ``now``: a new sink without inputs, or with sealed ones.

Let the *least* as_of of a dataflow be the join of the sinces of all stored inputs, also of those read through indexes.
Earlier it cannot begin.  A soft bound below the least as_of is raised to it: the dataflow begins as near to the bound
as it can.  Within these bounds each dataflow begins as late as possible, because a later beginning replays less; but
never after a dataflow that reads it (H1), which so hands its own bounds on to the indexes that it reads.

Consequences, each the subject of a test:

- All soft constraints are upper bounds, and the least as_ofs together satisfy H1, so neither the order of the
  constraints nor that of the dataflows matters, and only H2 can be unsatisfiable.
- Such a sink is refused, with the reason, and constrains nothing else.  Its inputs have forgotten times that its
  collection still lacks; to begin later would leave a gap.
- An input whose since is empty is dropped: its readers are refused, and all that read them through indexes.
  In a read-only instance they are left out without a reason: there another writer may drop what this one still names.
- A sealed input (empty upper) is complete at every time, so it does not bound its readers.
- A sealed sink has nothing left to write, and a dropped one no reader.  It does not run, and constrains nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from strandline.errors import InvalidUsage
from strandline.frontier import EMPTY, MINIMUM, Frontier, join, meet


@dataclass(frozen=True, slots=True)
class Stored:
    """How far a stored collection is: readable from ``since`` on, and complete before ``upper``."""

    since: Frontier
    upper: Frontier


@dataclass(frozen=True, slots=True)
class Dataflow:
    """An index, or the sink of the stored collection ``id``.  ``inputs``: the ids of what it reads."""

    id: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lag:
    """Keep an index readable ``ms`` milliseconds behind its upper, rounded down to whole multiples of ``grain_ms``.

    >>> Lag(5).since(20), Lag(5, 10).since(28), Lag(50).since(20)
    (15, 20, 0)
    """

    ms: int
    grain_ms: int = 1

    def since(self, upper: int) -> int:
        """Return the earliest time that stays readable."""
        time = max(0, upper - self.ms)
        return time - time % self.grain_ms


@dataclass(frozen=True, slots=True)
class ValidFrom:
    """Keep an index readable from the time ``at`` on."""

    at: int

    def since(self, upper: int) -> int:
        """Return the earliest time that stays readable."""
        return self.at


Policy: TypeAlias = Lag | ValidFrom


@dataclass(frozen=True, slots=True)
class Selection:
    """What each dataflow begins at.

    ``as_ofs``: by the id of each dataflow; empty: it does not run.  ``refused``: those of them that should run, and why
    they cannot, as a sentence for an operator.
    """

    as_ofs: Mapping[str, Frontier]
    refused: Mapping[str, str]


def select(
    dataflows: Sequence[Dataflow],
    storage: Mapping[str, Stored],
    now: int,
    policies: Mapping[str, Policy] | None = None,
    *,
    read_only: bool = False,
) -> Selection:
    """Return the as_of of each dataflow, as the module's constraints say.

    Args:
        dataflows: in any order; their ids are distinct.
        storage: how far all stored collections are that dataflows read or write.  The caller holds their sinces.
        now: the current time of the oracle.
        policies: by the id of an index; those of sinks are not asked.
        read_only: whether the instance writes nothing that other instances read.

    Raises:
        InvalidUsage: a dataflow reads what is neither stored nor a dataflow; or dataflows read each other in a circle.

    >>> of = {"s": Stored(Frontier(10), Frontier(20)), "v": Stored(Frontier(10), Frontier(13))}
    >>> found = select([Dataflow("i", ("s",)), Dataflow("v", ("i",)), Dataflow("j", ("s",))], of, now=15)
    >>> {name: str(as_of) for name, as_of in found.as_ofs.items()}
    {'i': '[12]', 'v': '[12]', 'j': '[15]'}
    """
    order = _inputs_first(dataflows, storage)
    readable = dict(storage)  # and each index: it can be read where all that it reads can be read
    as_ofs: dict[str, Frontier] = {}
    refused: dict[str, str] = {}
    for dataflow in order:
        own = storage.get(dataflow.id)
        if own is not None and (own.upper.empty or own.since.empty):
            continue
        lost = [each for each in dataflow.inputs if each not in readable or readable[each].since.empty]
        if lost:
            if not read_only:
                refused[dataflow.id] = f"{dataflow.id} reads {lost[0]}, which is dropped or reads what is dropped"
            continue
        inputs = [readable[each] for each in dataflow.inputs]
        reached = Stored(join(each.since for each in inputs), meet(each.upper for each in inputs))
        if own is None:
            readable[dataflow.id] = reached
            bounds = _of_index(reached.upper, now, (policies or {}).get(dataflow.id))
        elif (last := _last_without_gap(own)) < reached.since:
            refused[dataflow.id] = (
                f"{dataflow.id} must begin at {last} or earlier to continue its collection, and its inputs are "
                f"readable from {reached.since} on"
            )
            continue
        else:
            bounds = [last]
        bound = meet([*bounds, _before(reached.upper)])
        as_ofs[dataflow.id] = max(reached.since, Frontier(now) if bound.empty else bound)
    for dataflow in reversed(order):
        for each in dataflow.inputs:
            if dataflow.id in as_ofs and each not in storage:
                as_ofs[each] = min(as_ofs[each], as_ofs[dataflow.id])
    return Selection({each.id: as_ofs.get(each.id, EMPTY) for each in dataflows}, refused)


def _inputs_first(dataflows: Sequence[Dataflow], storage: Mapping[str, Stored]) -> list[Dataflow]:
    """Return the dataflows so that each follows the indexes that it reads."""
    known = {each.id: each for each in dataflows}
    assert len(known) == len(dataflows), "two dataflows have one id"
    graph: dict[str, list[str]] = {}
    for dataflow in dataflows:
        graph[dataflow.id] = [each for each in dataflow.inputs if each not in storage]
        for each in graph[dataflow.id]:
            if each not in known:
                raise InvalidUsage(f"{dataflow.id} reads {each}, which is neither stored nor a dataflow")
    try:
        return [known[each] for each in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise InvalidUsage(f"these dataflows read each other in a circle: {', '.join(error.args[1])}") from error


def _of_index(upper: Frontier, now: int, policy: Policy | None) -> list[Frontier]:
    """Return the bounds S2 and S3 of an index whose inputs are complete before ``upper``."""
    current = Frontier(now)
    if policy is None:
        return [current]
    return [current, Frontier(policy.since(now if upper.at is None else upper.at))]


def _last_without_gap(own: Stored) -> Frontier:
    """Return the latest as_of at which a sink can continue its own collection (H2); empty: any."""
    return EMPTY if own == Stored(MINIMUM, MINIMUM) else max(_before(own.upper), own.since)


def _before(upper: Frontier) -> Frontier:
    """Return the last time before ``upper``, as a bound; empty: none, for what is sealed is complete at every time."""
    return EMPTY if upper.at is None else Frontier(max(0, upper.at - 1))
