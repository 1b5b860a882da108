"""Persist answers the known cases, which are data (`tests/cases/persist.json`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier.antichain import EMPTY, Frontier
from strandline.persist.holds import downgrade_leased, expire_leased, register_leased
from strandline.persist.state import (
    Appended,
    OpaqueMismatch,
    UpperMismatch,
    compare_and_downgrade,
    expire_critical,
    register_critical,
)
from strandline.store.unreliable import Outcome
from strandline.testing.simulation import run_sync

FILE = json.loads((Path(__file__).parent.parent / "cases" / "persist.json").read_text())
CASES = FILE["cases"]
WAITING = FILE["waiting"]


def frontier(at):
    """A frontier from the cases' words: null closes."""
    return EMPTY if at is None else Frontier(at)


def words(of):
    """A frontier in the cases' words."""
    return [] if of.empty else [of.at]


class Stage:
    """One shard, and who acts on it."""

    def __init__(self, place):
        self.place = place
        self.writers = {"w1": place.writer()}

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
        staged = self.staged(step["lower"], step["upper"] or step["lower"] + 1, step["data"]) if "data" in step else []
        if "meanwhile" in step:
            self.place.clock.meanwhile.append(self.meanwhile(step["meanwhile"]))
        self.place.plan.extend(Outcome(fate) for fate in step.get("fates", ()))
        token = step.get("token")
        append = self.writers[name].compare_and_append(
            staged, Frontier(step["lower"]), frontier(step["upper"]), token=token
        )
        outcome = self.outcome(run_sync(append))
        assert not self.place.plan, "an attempt that the case names was not made"
        assert not self.place.clock.meanwhile, "nobody waited while the other writer acted"
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

    def staged(self, lower, upper, data):
        return [self.place.stage("s", lower, upper, data)]

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

    def land(self, step):
        run_sync(self.place.consensus.land())

    def open(self, step):
        self.place.writer(epoch=step["epoch"])
        return "opened"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_each_step_of_the_known_cases_is_answered_as_it_must(place, case):
    """Damage: persist differs where others lost data before."""
    stage = Stage(place)
    for step in case["steps"]:
        before = stage.versions
        assert stage.do(step) == step.get("answer"), step
        if "new_versions" in step:
            assert stage.versions - before == step["new_versions"], step


def test_no_case_is_lost():
    """Damage: a case is neither run nor waiting, and nobody notices."""
    assert len(CASES) + len(WAITING["cases"]) == 26


@pytest.mark.skip(reason=f"{WAITING['reason']}: {', '.join(WAITING['cases'])}")
def test_the_cases_that_wait():
    """Damage: what is not proven yet is taken for proven."""
