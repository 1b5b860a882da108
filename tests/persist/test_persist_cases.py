"""Persist answers the known cases, which are data (`tests/cases/persist.json`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier import EMPTY, TIME_MAX, Frontier
from strandline.persist.handles.contents import Contents, Half, StageRequest
from strandline.persist.shard.batch import NOTHING, Batch, InlinePart, Staged, as_batch, retimed
from strandline.persist.shard.holds import downgrade_leased, expire_leased, register_leased
from strandline.persist.shard.state import (
    Appended,
    OpaqueMismatch,
    ShardState,
    UpperMismatch,
    compare_and_downgrade,
    expire_critical,
    register_critical,
)
from strandline.persist.shard.trace import Merge, Merged, Stale, apply_merge, everything
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync

FILE = json.loads((Path(__file__).parent.parent / "cases" / "persist.json").read_text())
CASES = FILE["cases"]


def frontier(at):
    """A frontier from the cases' words: null closes."""
    return EMPTY if at is None else Frontier(at)


def words(of):
    """A frontier in the cases' words."""
    return [] if of.empty else [of.at]


def blank(lower, upper, rows, since=0):
    """A batch of nothing but its sums."""
    part = InlinePart(bytes([lower]), rows)
    return Batch(Frontier(lower), Frontier(upper), Frontier(since), (part,), rows, 1, NOTHING, plain=False)


def made(inputs, lower, upper, rows, since):
    """What a merge of ``inputs`` gave."""
    part = InlinePart(b"", rows)
    diffs = sum(batch.diffs for batch in inputs)
    return Staged(Frontier(lower), Frontier(upper), (part,), rows, diffs, NOTHING, False, since=Frontier(since))


class Stage:
    """One shard, and the handles that act on it."""

    def __init__(self, place):
        self.place = place
        self.writers = {"w1": place.writer()}
        self.kept = {}
        self.listening = None
        self.traced = None

    @property
    def versions(self):
        """How many there are."""
        return len(self.place.versions["s"])

    def do(self, step):
        """Do one step; return the answer in the cases' words."""
        try:
            return getattr(self, step["do"])(step)
        except InvalidUsage:
            return "error"

    def expect(self, step):
        state = self.place.state()
        return {"since": words(state.since), "upper": words(state.upper)}

    def append(self, step):
        name = step["writer"]
        if name not in self.writers:
            self.writers[name] = self.place.writer()
        inline = 0 if step.get("blob") else 1 << 14
        upper = step["upper"] or step["lower"] + 1
        staged = self.staged(step["lower"], upper, step["data"], inline) if "data" in step else []
        if "meanwhile" in step:
            self.place.clock.meanwhile.append(self.meanwhile(step["meanwhile"]))
        self.place.plan.extend(Outcome(fate) for fate in step.get("fates", ()))
        token = step.get("token")
        append = self.writers[name].compare_and_append(
            staged, Frontier(step["lower"]), frontier(step["upper"]), token=token
        )
        outcome = self.outcome(run_sync(append))
        assert not self.place.plan, "an attempt that the case names was not made"
        assert not self.place.clock.meanwhile, "no call waited while the other writer acted"
        return outcome

    def meanwhile(self, step):
        async def other():
            writer = self.writers[step["writer"]]
            await writer.refresh()
            staged = self.staged(step["lower"], step["upper"], step["data"])
            append = writer.compare_and_append(
                staged, Frontier(step["lower"]), frontier(step["upper"]), token=step["token"]
            )
            assert self.outcome(await append) == step["answer"]

        self.writers.setdefault(step["writer"], self.place.writer())
        return other

    def outcome(self, outcome):
        match outcome:
            case Appended(upper):
                return {"appended": words(upper)}
            case UpperMismatch(actual):
                return {"mismatch": words(actual)}

    def staged(self, lower, upper, data, inline=1 << 14):
        return [self.place.stage("s", lower, upper, data, inline=inline)]

    def stage(self, step):
        (staged,) = self.staged(step["lower"], step["upper"], step["data"])
        return {"parts": len(staged.parts), "rows": staged.rows}

    def stage_and_append(self, step):
        lower, upper = step["staged"]
        staged = self.staged(lower, upper, [["x", lower, 1]])
        append = self.writers["w1"].compare_and_append(staged, Frontier(step["lower"]), Frontier(step["upper"]))
        return self.outcome(run_sync(append))

    def commit(self, command):
        return run_sync(self.writers["w1"]._machine.commit(command))

    def register(self, step):
        return {"since": words(self.commit(lambda state: register_critical(state, step["reader"])).since)}

    def downgrade(self, step):
        since = frontier(step["since"])
        answer = self.commit(lambda s: compare_and_downgrade(s, step["reader"], step["expect"], step["set"], since))
        if isinstance(answer, OpaqueMismatch):
            return {"mismatch": {"opaque": answer.opaque, "since": words(answer.since)}}
        return {"ok": words(answer.since)}

    def expire(self, step):
        token = self.place.state().criticals[step["reader"]].opaque
        self.commit(lambda state: expire_critical(state, step["reader"], token))
        return "still there" if step["reader"] in self.place.state().criticals else "gone"

    def register_leased(self, step):
        return {"since": words(self.commit(lambda state: register_leased(state, step["reader"], 0)).since)}

    def downgrade_leased(self, step):
        since = frontier(step["since"])
        return {"ok": words(self.commit(lambda s: downgrade_leased(s, step["reader"], since, s.seqno, 0)).since)}

    def expire_leased(self, step):
        self.commit(lambda state: expire_leased(state, step["reader"]))
        return "still there" if step["reader"] in self.place.state().leased else "gone"

    def snapshot(self, step):
        try:
            return self.place.snapshot(step["as_of"])
        except AsOfError:
            return f"since {self.place.state().since}"

    def batches(self, step):
        return [[batch.lower.at, batch.upper.at] for batch in self.place.state().batches]

    def keep(self, step):
        self.kept[step["batch"]] = self.place.stage("s", step["lower"], step["upper"], step["data"])
        return "kept"

    def shown(self, staged):
        contents = Contents("s", self.place.schema, (as_batch(staged),), 0, TIME_MAX, 0)
        return self.place.rows(contents)

    def trim(self, step):
        lower, upper = Frontier(step["lower"]), Frontier(step["upper"])
        whole = self.kept[step["batch"]]
        trimmed = run_sync(self.place.engine.trim(whole, self.place.schema, lower, upper))
        rows = self.shown(trimmed)
        assert (trimmed.rows, trimmed.diffs) == (len(rows), sum(diff for _, _, diff in rows))
        self.kept[step["batch"]] = trimmed
        return rows

    def retime(self, step):
        lower, upper = Frontier(step["lower"]), Frontier(step["upper"])
        self.kept[step["batch"]] = retimed(self.kept[step["batch"]], lower, upper)
        return "retimed"

    def append_kept(self, step):
        staged = [self.kept[name] for name in step["batches"]]
        append = self.writers["w1"].compare_and_append(staged, Frontier(step["lower"]), Frontier(step["upper"]))
        return self.outcome(run_sync(append))

    def certified(self, step):
        alone = self.place.stage("s", 0, 1, [[k, 0, diff] for k, diff in step["rows"]])
        return "the same digest" if self.place.state().digest == alone.digest else "another digest"

    def merge(self, step):
        inputs = tuple(as_batch(self.kept[name]) for name in step["in"])
        contents = Contents("s", self.place.schema, inputs, 0, TIME_MAX, step["since"], Half.BOTH)
        request = StageRequest("s", self.place.schema, step["lower"], step["upper"], f"s/parts/{len(self.kept)}/")
        self.kept["merged"] = Merge(inputs, run_sync(self.place.engine.merge(contents, request))).output
        return self.shown(self.kept["merged"])

    def merge_bounds(self, step):
        inputs = tuple(
            blank(lower, upper, 1, since) for (lower, upper), since in zip(step["in"], step["in_since"], strict=True)
        )
        Merge(inputs, made(inputs, step["lower"], step["upper"], 1, step["since"]))
        return "fine"

    def trace(self, step):
        batches = tuple(blank(*each) for each in step["batches"])
        self.traced = ShardState("s", since=Frontier(step["since"]), upper=batches[-1].upper, batches=batches)
        self.unit = batches[step["unit"] - 1].upper
        return len(batches)

    def apply(self, step):
        lower, upper = Frontier(step["lower"]), Frontier(step["upper"])
        merged = tuple(b for b in self.traced.batches if b.upper <= self.unit)
        inputs = tuple(b for b in merged if lower < b.upper and b.lower < upper)
        output = made(inputs, step["lower"], step["upper"], step["rows"], step.get("since", 0))
        after, outcome = apply_merge(self.traced, Merge(inputs, output))
        return "stale" if isinstance(outcome, Stale) else len(after.batches)

    def compact(self, step):
        compactor = run_sync(self.place.client(self.place.engine).compactor("s"))
        assert run_sync(compactor.whole()) == Merged()
        return self.batches(step)

    def reader(self):
        return run_sync(self.place.client().reader("s", self.place.schema, "s"))

    def changes(self, step):
        return self.place.rows(run_sync(self.reader().changes(step["lower"], step["upper"])))

    def listen(self, step):
        async def listened():
            contents, _ = await anext(self.listening)
            return contents

        if self.listening is None:
            self.listening = self.reader().listen(step["as_of"])
        return self.place.rows(run_sync(listened()))

    def compact_small(self, step):
        compactor = run_sync(self.place.client(self.place.engine).compactor("s"))
        plan = replace(everything(self.place.state()), inline_bytes_max=0)
        assert run_sync(compactor.carry_out(plan)) == Merged()
        return self.batches(step)

    def collect(self, step):
        done = run_sync(run_sync(self.place.client(grace_ms=0).collector("s")).collect(step["to"]))
        return {"parts": done.parts, "rollups": done.rollups, "versions": done.versions}

    def roll_up(self, step):
        run_sync(self.writers["w1"].refresh())
        run_sync(self.writers["w1"]._machine.roll_up())
        return self.rollups(step)

    def rollups(self, step):
        return [rollup.seqno for rollup in self.place.state().rollups]

    def parts(self, step):
        return sum("/parts/" in key for key in self.place.objects)

    def truncate_elsewhere(self, step):
        run_sync(self.place.consensus.truncate("s", step["to"]))

    def land(self, step):
        run_sync(self.place.consensus.land())

    def open(self, step):
        self.place.writer(epoch=step["epoch"])
        return "opened"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_each_step_of_the_known_cases_is_answered_as_it_must(place, case):
    """Damage: persist gives a wrong answer in a case in which another system lost data."""
    stage = Stage(place)
    for step in case["steps"]:
        before = stage.versions
        assert stage.do(step) == step.get("answer"), step
        if "new_versions" in step:
            assert stage.versions - before == step["new_versions"], step


def test_no_case_is_lost():
    """Damage: a case is silently not run."""
    assert len(CASES) == 26
    assert "waiting" not in FILE
