"""Law P1 and P4 under compaction: whatever is merged, cut or moved, whenever, every read stays as it was."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.algebra.schema import Column, Schema
from strandline.frontier import TIME_MAX, Frontier
from strandline.persist.handles.contents import Contents, Half, StageRequest
from strandline.persist.handles.read import contents
from strandline.persist.shard.batch import NOTHING, retimed
from strandline.persist.shard.state import Append, Appended, ShardState, append
from strandline.persist.shard.trace import Merge, Merged, Plan, apply_merge
from strandline.store.memory import MemoryBlob
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.simulation.kernel import run_sync

pytestmark = pytest.mark.property

KEYS = "abc"
TIMES = 12

appends = st.tuples(
    st.just("append"),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 2), st.sampled_from((1, 1, 2, -1))), max_size=4),
    st.sampled_from(("as it is", "cut", "moved")),
)
merges = st.tuples(st.just("merge"), st.integers(0, 5), st.integers(1, 4))
sinces = st.tuples(st.just("since"), st.integers(0, TIMES))


class Shard:
    """A shard with an engine of lists, and the naive truth beside it."""

    def __init__(self, schema):
        self.schema = schema
        self.engine = ListEngine(MemoryBlob({}))
        self.state = ShardState("s")
        self.truth = []  # (k, time, diff)
        self.serial = 0

    def request(self, lower, upper):
        self.serial += 1
        return StageRequest(
            "s", self.schema, lower, upper, f"s/parts/{self.serial}/", inline_bytes_max=self.serial % 2 * 999
        )

    def append(self, length, rows, how):
        lower = self.state.upper.at
        upper = lower + length
        written = [(k, lower + at % length, diff) for k, at, diff in rows]
        wide = {"as it is": (lower, upper), "cut": (lower - 1, upper + 2), "moved": (lower - 1, upper)}[how]
        if wide[0] < 0:
            wide, how = (lower, upper), "as it is"
        outside = [("outside", lower - 1, 1), ("outside", upper, 1)] if how == "cut" else []
        given_rows = ({"k": k, "__time": time, "__diff": diff} for k, time, diff in written + outside)
        staged = run_sync(self.engine.stage(updates(self.schema, given_rows), self.request(*wide)))
        if how == "cut":
            staged = run_sync(self.engine.trim(staged, self.schema, Frontier(lower), Frontier(upper)))
        if how == "moved":
            staged = retimed(staged, Frontier(lower), Frontier(upper))
        token = str(self.serial)
        asked = Append("w", token, 0, (staged,) if staged.parts else (), Frontier(lower), Frontier(upper))
        self.state, answer = append(self.state, asked)
        assert isinstance(answer, Appended)
        self.truth += written

    def merge(self, first, count):
        inputs = self.state.batches[first : first + count]
        if not inputs:
            return
        plan = Plan(inputs, max((self.state.since, *(b.since for b in inputs)), key=lambda f: f.at), 999)
        lower, upper = inputs[0].lower.at, inputs[-1].upper.at
        wanted = Contents("s", self.schema, inputs, 0, TIME_MAX, plan.since.at, Half.BOTH)
        output = run_sync(self.engine.merge(wanted, self.request(lower, upper)))
        self.state, outcome = apply_merge(self.state, Merge(inputs, output))
        assert outcome == Merged()

    def since(self, at):
        since = max(self.state.since.at, at)
        self.state = replace(self.state, since=Frontier(since))

    def read(self, lower, upper, advance):
        found = Counter()
        for row in listed(
            run_sync(self.engine.read(contents(self.state, self.schema, lower, upper, advance=advance)))
        ).rows:
            found[row["k"], row["__time"]] += row["__diff"]
        return {at: diff for at, diff in found.items() if diff}

    def check(self):
        since, upper = self.state.since.at, self.state.upper.at
        for as_of in range(since, upper):
            expected = Counter()
            for k, time, diff in self.truth:
                if time <= as_of:
                    expected[k, as_of] += diff
            assert self.read(0, as_of + 1, as_of) == {at: diff for at, diff in expected.items() if diff}
        for lower in range(since + 1, upper):
            expected = Counter()
            for k, time, diff in self.truth:
                if lower <= time < upper:
                    expected[k, time] += diff
            assert self.read(lower, upper, lower) == {at: diff for at, diff in expected.items() if diff}
        assert self.state.digest == sum((b.digest for b in self.state.batches), NOTHING)
        assert sum(diff for _, _, diff in self.truth) == sum(b.diffs for b in self.state.batches)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(appends, appends, merges, sinces), max_size=14))
def test_every_read_is_what_it_was(steps):
    """Damage: a row vanishes, comes twice or at another time, because of what maintenance did in the background."""
    shard = Shard(Schema((Column("k", "string"),)))
    for name, *arguments in steps:
        getattr(shard, name)(*arguments)
        shard.check()
