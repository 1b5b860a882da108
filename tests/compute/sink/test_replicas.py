"""Replicas: two sinks of one view race for its shard, and what both computed is one fact."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from workshop import SCHEMA, CopyingEngine, Workshop, append, spoil

from strandline.algebra.nodes import Node
from strandline.compute.sink.actor import Counters, Sink
from strandline.compute.sink.correction import HELD_MAX, Updates
from strandline.compute.step import Draft, Drafted, StageRun
from strandline.compute.tick import tick
from strandline.frontier import Frontier, as_time
from strandline.persist.handles.contents import Contents, Rows, StageRequest
from strandline.persist.handles.read import contents
from strandline.persist.shard.batch import Staged
from strandline.testing.doubles import in_turn
from strandline.testing.lists.list_engine import listed, updates
from strandline.testing.simulation.kernel import run_sync


class Counting(CopyingEngine):
    """Counts the reads of each shard.

    ``before`` happens once, before the next plan is evaluated; ``staging`` before the next batches are staged.
    """

    reads: Counter[str]
    before: Callable[[], Awaitable[object]] | None = None
    staging: Callable[[], Awaitable[object]] | None = None

    async def stage_many(self, asked: Sequence[tuple[Rows, StageRequest]]) -> list[Staged | BaseException]:
        """See `Engine.stage_many`."""
        happens, self.staging = self.staging, None
        if happens is not None:
            await happens()
        return await super().stage_many(asked)

    async def read(self, wanted: Contents) -> Rows:
        """See `Engine.read`."""
        self.reads[wanted.shard] += 1
        return await super().read(wanted)

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """See `Engine.evaluate`."""
        happens, self.before = self.before, None
        if happens is not None:
            await happens()
        return await super().evaluate(node, frames, origin=origin)


class Pair(Workshop):
    """A workshop with two replicas of a stage ``v`` that copies ``t``, each in a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Counting(self.blob)
        self.engine.reads = Counter()
        self.first = self.copy("v")
        self.second = self.copy("v", client=self.process())

    def drafted(self, run: StageRun, upper: int | None = None) -> Drafted:
        """Let a replica do a step up to where it would append."""
        hear(run)
        draft = run_sync(run.draft(Frontier(self.upper if upper is None else upper)))
        assert isinstance(draft, Draft)
        rows, request = draft.writing.rows, draft.writing.request
        return draft, None if rows is None else run_sync(self.engine.stage(rows, request))

    def bring(self, run: StageRun, drafted: Drafted | None = None, upper: int | None = None) -> Any:
        """Let a replica step to where the input is."""
        hear(run)
        return run_sync(run.step(Frontier(self.upper if upper is None else upper), drafted))

    async def append_wrong(self, sink: Sink, *changes: tuple[str, int]) -> None:
        """Let a replica that is wrong append ``changes`` as what it desires up to where the input is."""
        rows = updates(SCHEMA, ({"k": k, "__time": self.upper - 1, "__diff": diff} for k, diff in changes))
        await sink.open()
        await sink.advance(Updates((rows,)), Frontier(self.upper), small=True)

    def go_wrong(self, *changes: tuple[str, int]) -> None:
        """Let the second replica do so now."""
        run_sync(self.append_wrong(self.second.sink, *changes))

    def changes(self, shard: str) -> Counter[tuple[str, int]]:
        """Return all updates of a shard, by row and time."""
        state = self.reader(shard).state
        held = run_sync(CopyingEngine.read(self.engine, contents(state, SCHEMA, 0, as_time(state.upper), advance=0)))
        found: Counter[tuple[str, int]] = Counter()
        for row in listed(held).rows:
            found[row["k"], row["__time"]] += row["__diff"]
        return Counter({key: count for key, count in found.items() if count})


def request_of(upper: int) -> StageRequest:
    """Return how a batch of all times before ``upper`` is staged in memory."""
    return StageRequest("v", SCHEMA, 0, upper, "", inline_bytes_max=1 << 14)


def hear(run: StageRun) -> None:
    """Let a replica hear how far its inputs are."""
    for reader in run._inputs.values():
        run_sync(reader.refresh())


@pytest.fixture
def pair() -> Pair:
    """Both replicas are where the input is, with one row."""
    pair = Pair()
    pair.write(("a", 1))
    pair.bring(pair.first)
    pair.bring(pair.second)
    pair.engine.reads.clear()
    return pair


@pytest.mark.parametrize("changes", [(("b", 1), ("a", -1)), (("b", 1), ("b", -1))])
def test_two_replicas_that_appended_the_same_have_no_conflict(pair: Pair, changes: tuple[tuple[str, int], ...]) -> None:
    """Damage: each race of two replicas costs a read of the view and a job, and looks like damage in the status."""
    pair.write(*changes)
    ours, theirs = pair.drafted(pair.first), pair.drafted(pair.second)
    pair.engine.reads.clear()
    won, lost = pair.bring(pair.first, ours), pair.bring(pair.second, theirs)

    sink = pair.second.sink
    assert sink.counters == Counters(equal=1)
    assert (sink.owes, sink.desired, sink.disagreed) == (False, pair.upper, None)
    assert pair.engine.reads["v"] == 0
    assert won.draft is ours[0]
    assert lost.draft is theirs[0]  # so that what follows it in the same wave goes on

    pair.write(("c", 1))
    pair.bring(pair.second)
    assert sink.counters.appends == 1
    assert pair.changes("v") == pair.changes("t")


def test_replicas_that_begin_a_view_together_audit_nothing() -> None:
    """Damage: the view is computed whole once for each replica, and once more to compare."""
    pair = Pair()
    pair.write(("a", 1))
    hear(pair.second)
    step = pair.second.step(Frontier(pair.upper))

    async def win() -> None:
        await pair.first.step(Frontier(pair.upper))

    pair.engine.before = win
    run_sync(step)
    assert [each.sink.counters.equal for each in (pair.first, pair.second)] == [0, 1]
    assert [each.sink.counters.audits + each.sink.counters.conflicts for each in (pair.first, pair.second)] == [0, 0]
    assert pair.contents() == {"a": 1}


def test_a_replica_that_was_opened_before_there_was_a_view_believes_the_one_that_made_it(pair: Pair) -> None:
    """Damage: it computes the whole view, though the shard is certified."""
    late = Sink(pair.engine, pair.writer("w"), SCHEMA, "copy of t")
    run_sync(late.open())
    early = pair.copy("w", client=pair.process())
    pair.bring(early)
    run_sync(late.writer.refresh())
    run_sync(late.look())
    assert late.desired == pair.upper
    assert late.counters == Counters()


def test_one_that_others_are_ahead_of_goes_on_from_where_they_are(pair: Pair) -> None:
    """Damage: a slow replica withdraws what the fast one wrote, and writes it again."""
    pair.write(("b", 1))
    slow = pair.drafted(pair.second)
    pair.write(("c", 1))
    pair.bring(pair.first)
    pair.engine.reads.clear()

    assert pair.bring(pair.second, slow, upper=pair.upper - 1).draft is None
    assert pair.second.sink.desired == pair.upper
    assert (pair.second.sink.counters.conflicts, pair.engine.reads["v"]) == (0, 0)
    assert not pair.second.sink.owes
    pair.write(("d", 1))
    pair.bring(pair.second)
    assert pair.changes("v") == pair.changes("t")


def test_one_that_is_ahead_of_others_computes_what_they_have_not(pair: Pair) -> None:
    """Damage: what the slow replica did not read yet is missing from the view, or is in it twice."""
    pair.write(("b", 1))
    slow = pair.drafted(pair.first)
    pair.write(("c", 1))
    fast = pair.drafted(pair.second)
    pair.bring(pair.first, slow, upper=pair.upper - 1)
    pair.engine.reads.clear()

    assert pair.bring(pair.second, fast).draft is None
    assert (pair.second.sink.counters.conflicts, pair.engine.reads["v"]) == (0, 0)
    assert pair.second.sink.counters.appends == 1
    assert pair.changes("v") == pair.changes("t")


def test_one_that_may_write_at_last_goes_on_from_where_another_one_came_to(pair: Pair) -> None:
    """Damage: a controller that takes over hands out views that lack what it has long computed."""
    sink = pair.second.sink
    sink.may_write = False
    for key in "bc":
        pair.write((key, 1))
        pair.bring(pair.second)
    assert (sink.owes, sink.desired) == (True, pair.upper)
    pair.bring(pair.first, upper=pair.upper - 1)
    sink.may_write = True
    pair.bring(pair.second)
    assert (sink.owes, sink.desired, sink.counters.conflicts) == (False, pair.upper, 0)
    assert pair.changes("v") == pair.changes("t")


@pytest.mark.parametrize("further", [0, 1], ids=["as far", "further"])
def test_a_step_in_which_a_replica_was_faster_gives_up_what_it_began(pair: Pair, further: int) -> None:
    """Damage: it adds changes that began before what it adopted: they are in the view twice."""
    pair.write(("b", 1))
    hear(pair.second)
    step = pair.second.step(Frontier(pair.upper))
    for _ in range(further):
        pair.write(("c", 1))

    async def overtake() -> None:
        await pair.first.step(Frontier(pair.upper))
        await pair.second.sink.writer.refresh()
        await pair.second.sink.own_errors("v")  # as a step does that looks at its own shard

    pair.engine.before = overtake
    run_sync(step)
    assert not pair.second.sink.owes
    assert pair.second.sink.counters.conflicts == 0
    pair.write(("d", 1))
    pair.bring(pair.second)
    assert pair.changes("v") == pair.changes("t")


def test_a_move_that_a_replica_made_first_is_no_conflict(pair: Pair) -> None:
    """Damage: an idle replica counts a conflict at every tick, and steps where it could rest."""
    pair.write()
    hear(pair.second)
    moves = [(each.sink.writer, Frontier(pair.upper), each.sink.fingerprint) for each in (pair.first, pair.second)]
    pair.first.sink.move(Frontier(pair.upper))
    pair.second.sink.move(Frontier(pair.upper))
    (ours,) = run_sync(pair.client.advance_many(moves[:1]))
    pair.first.sink.moved(ours, Frontier(pair.upper), read=Frontier(pair.upper))
    theirs = run_sync(pair.second.sink.writer.compare_and_append([], Frontier(pair.upper - 1), Frontier(pair.upper)))
    pair.second.sink.moved(theirs, Frontier(pair.upper), read=Frontier(pair.upper))

    assert (pair.second.sink.counters.conflicts, pair.second.sink.counters.equal) == (0, 1)
    assert pair.second.sink.disagreed is None
    pair.write()
    hear(pair.second)
    assert pair.second.quiet(Frontier(pair.upper), frozenset())


def test_a_replica_that_writes_where_another_one_only_moves_disagrees_with_it(pair: Pair) -> None:
    """Damage: rows that a wrong replica makes up at an idle time are believed."""
    pair.write()
    pair.first.sink.move(Frontier(pair.upper))
    pair.go_wrong(("wrong", 1))
    ours = run_sync(pair.first.sink.writer.compare_and_append([], Frontier(pair.upper - 1), Frontier(pair.upper)))
    pair.first.sink.moved(ours, Frontier(pair.upper), read=Frontier(pair.upper))

    assert pair.first.sink.disagreed is not None
    pair.write()
    pair.bring(pair.first)
    assert pair.contents() == {"a": 1}


def test_a_replica_that_computed_other_rows_is_a_conflict_that_is_reported_and_repaired(pair: Pair) -> None:
    """Damage: a wrong replica wins a race, and its rows stay in the view with a certificate."""
    pair.write(("b", 1))
    ours = pair.drafted(pair.first)
    pair.go_wrong(("b", 2), ("wrong", 1))
    assert pair.bring(pair.first, ours).draft is None

    sink = pair.first.sink
    assert sink.counters.conflicts == 1
    assert sink.disagreed is not None
    assert (sink.disagreed.lower, sink.disagreed.upper) == (Frontier(pair.upper - 1), Frontier(pair.upper))
    assert ours[1] is not None
    assert not isinstance(ours[1], BaseException)
    before = run_sync(pair.engine.stage(updates(SCHEMA, [{"k": "a", "__time": 1}]), request_of(2))).digest
    assert sink.disagreed.ours - before == ours[1].digest != sink.disagreed.theirs - before
    assert sink.disagreed.theirs == pair.reader("v").state.digest
    assert (sink.disagreed.missing, sink.disagreed.extra) == (2, 0)
    assert sink.disagreed.example in {"{'k': 'b'} (missing)", "{'k': 'wrong'} (missing)"}
    pair.write(("c", 1))
    pair.bring(pair.first)
    assert pair.contents() == {"a": 1, "b": 1, "c": 1}
    assert not sink.doubted


def test_a_certificate_is_not_believed_between_a_disagreement_and_the_repair(pair: Pair) -> None:
    """Damage: the wrong replica goes one step further, and the right one believes it."""
    pair.write(("b", 1))
    ours = pair.drafted(pair.first)
    pair.go_wrong(("wrong", 1))
    pair.bring(pair.first, ours)
    pair.write(("c", 1))
    pair.go_wrong(("c", 1))
    run_sync(pair.first.sink.writer.refresh())
    pair.bring(pair.first)
    pair.write()
    pair.bring(pair.first)
    assert pair.contents() == {"a": 1, "b": 1, "c": 1}


def test_nor_after_the_shard_was_opened_again(pair: Pair) -> None:
    """Damage: a step fails, the sink opens its shard, and believes there what it has just found wrong."""
    pair.write(("b", 1))
    ours = pair.drafted(pair.first)
    pair.go_wrong(("wrong", 1))
    pair.bring(pair.first, ours)
    pair.first.sink.forget()
    pair.write()
    pair.bring(pair.first)
    assert pair.first.sink.counters.audits == 1
    assert pair.contents() == {"a": 1, "b": 1}


def test_an_audit_believes_a_replica_only_if_it_came_to_the_same(pair: Pair) -> None:
    """Damage: an audit that was asked for believes the certificate that it was to check."""
    pair.go_wrong(("wrong", 1))  # at an upper that the shard has: nothing is appended
    pair.write()
    pair.go_wrong(("wrong", 1))
    pair.first.audit()
    pair.write(("b", 1))
    pair.bring(pair.second)
    pair.bring(pair.first)
    pair.write()
    pair.bring(pair.first)
    assert pair.contents() == {"a": 1, "b": 1}


@pytest.mark.parametrize("certified", [False, True], ids=["a stranger", "a wrong replica"])
def test_what_a_sink_owes_is_bounded_however_many_races_it_loses(pair: Pair, *, certified: bool) -> None:
    """Damage: an instance beside a faster writer holds more and more, until it has no memory left."""
    held = []
    for number in range(1_000):
        pair.write((f"k{number % 7}", 1))
        if certified:
            hear(pair.first)
            step = pair.first.step(Frontier(pair.upper))
            pair.engine.before = partial(pair.append_wrong, pair.second.sink, ("wrong", 1))
            run_sync(step)
        else:
            run_sync(spoil(pair, "v"))
            pair.bring(pair.first)
        held.append(len(pair.first.sink._correction._held))
    assert max(held) <= HELD_MAX + 1
    assert pair.first.sink.counters.conflicts + pair.first.sink.counters.audits >= 1_000
    pair.write()
    pair.bring(pair.first)
    assert pair.contents() == {"a": 1} | {f"k{n}": len(range(n, 1_000, 7)) for n in range(7)}


@pytest.mark.parametrize("at", ["drafting", "staging"])
def test_a_wave_goes_on_over_what_a_replica_has_appended(at: str) -> None:
    """Damage: what reads the stage that lost waits for another tick, or takes its rows twice."""
    pair = Pair()
    pair.copy("w", of="v")
    process = pair.process()
    second = [pair.copy("v", client=process), pair.copy("w", of="v", client=process)]
    for number in range(4):
        pair.write((f"k{number}", 1), ("a", 1 if number % 2 else -1))
        for run in second:
            hear(run)

        async def win() -> None:
            await tick(pair.client, pair.engine, second, Frontier(pair.upper), in_turn)

        if at == "drafting":
            pair.engine.before = win
        else:
            pair.engine.staging = win
        report = pair.tick()
        assert (report.failed, report.standing) == ({}, {})
        assert pair.changes("w") == pair.changes("v") == pair.changes("t")
    assert all(run.sink.counters.conflicts == 0 for run in pair.runs.values())
    assert all(run.sink.counters.equal >= 3 for run in pair.runs.values())


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(60))
def test_replicas_keep_a_view_exact_in_any_order_of_their_steps(seed: int) -> None:
    """Damage: an order of steps and races leaves a view wrong at some time: rows are missing, or there twice."""
    chance, pair = random.Random(seed), Pair()
    runs, open_drafts = (pair.first, pair.second), dict[int, Drafted]()
    foreign, audited = chance.random() < 0.3, False
    pair.write(("a", 1))
    for _ in range(60):
        which = chance.randrange(2)
        run = runs[which]
        match chance.choice(["write", "write", "draft", "draft", "step", "tick", "reopen", "hear", "audit", "foreign"]):
            case "write":
                pair.write(*[(chance.choice("abc"), chance.choice([1, 1, -1])) for _ in range(chance.randint(0, 2))])
            case "draft" if which not in open_drafts:
                hear(run)
                upper = chance.randint(max(1, pair.upper - 2), pair.upper)
                draft = run_sync(run.draft(Frontier(upper)))
                if draft is not None:
                    rows = draft.writing.rows
                    staged = None if rows is None else run_sync(pair.engine.stage(rows, draft.writing.request))
                    open_drafts[which] = draft, staged
            case "draft" | "step":
                pair.bring(run, open_drafts.pop(which, None))
            case "reopen" if which not in open_drafts:
                run.sink.forget()
            case "audit" if which not in open_drafts and chance.random() < 0.3:
                run.audit()
                audited = True  # until it is made, certificates are not believed
            case "hear":
                run_sync(run.sink.writer.refresh())
            case "foreign" if foreign:
                run_sync(spoil(pair, "v"))
            case _:
                pass
    if foreign:
        pair.upper = max(pair.upper, as_time(pair.reader("v").state.upper))
        run_sync(append(pair.engine, pair.input, as_time(pair.input.state.upper), pair.upper + 1, []))
        pair.upper += 1
    for which, run in enumerate(runs):
        pair.bring(run, open_drafts.pop(which, None))
    pair.write()
    pair.bring(chance.choice(runs))
    assert pair.contents() == pair.contents("t")
    if not foreign:
        begun = min((time for _, time in pair.changes("v")), default=0)
        early: Counter[tuple[str, int]] = Counter()
        for (row, time), count in pair.changes("t").items():
            early[row, max(time, begun)] += count
        assert pair.changes("v") == Counter({key: count for key, count in early.items() if count})
        assert all(run.sink.disagreed is None for run in runs)
        assert audited or not any(run.sink.counters.conflicts for run in runs)
