"""A state, its entries, its diffs and its bytes are four forms of one thing; the laws hold along every history."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from strandline.errors import ConfigError, InvalidUsage
from strandline.frontier import EMPTY, Frontier, join
from strandline.persist.shard import codec, invariants
from strandline.persist.shard.batch import NOTHING, BlobPart, Digest, InlinePart, KeyRange, Staged, Window
from strandline.persist.shard.evolution import evolve
from strandline.persist.shard.holds import (
    LEASE_MS,
    downgrade_leased,
    expire_leased,
    expire_overdue,
    register_leased,
    release_past,
)
from strandline.persist.shard.state import (
    Append,
    Appended,
    Fenced,
    Rollup,
    ShardState,
    UpperMismatch,
    add_rollup,
    admit,
    append,
    compare_and_downgrade,
    describe,
    drop_rollups,
    expire_critical,
    finalize,
    mark_swept,
    open_at,
    register_critical,
)
from strandline.persist.shard.trace import Merge, Merged, apply_merge
from strandline.store.seal import Kind, seal

FIRST = ShardState("s", seqno=1, rollups=(Rollup(1, "s/rollup/1"),))
READERS = ("r", "q/with a slash")


@st.composite
def parts(draw):
    """A part."""
    rows = draw(st.integers(1, 3))
    window = draw(st.sampled_from([None, Window(0, EMPTY, 3), Window(1, Frontier(2))]))
    if draw(st.booleans()):
        return InlinePart(draw(st.binary(max_size=5)), rows, window)
    crc = draw(st.integers(0, 2**32 - 1))
    keys = draw(st.sampled_from([None, KeyRange(None, None), KeyRange(-1, 2**40), KeyRange("", "é")]))
    return BlobPart(f"s/parts/{draw(st.integers(0, 9))}", draw(st.integers(0, 99)), rows, crc, "", window, keys)


@st.composite
def commands(draw):
    """A change of a shard: a function of the state."""
    kind = draw(
        st.sampled_from(
            ["append"] * 4
            + ["merge", "merge", "lease", "release", "evolve", "downgrade", "register", "expire"]
            + ["admit", "open", "rollup", "describe", "leave", "overdue", "past", "finalize", "drop rollups", "swept"]
        )
    )
    n = draw(st.integers(0, 6))
    reader = draw(st.sampled_from(READERS))
    match kind:
        case "append":
            held = draw(st.lists(parts(), max_size=2))
            return appending(
                n, held, draw(st.integers(0, 3)), draw(st.sampled_from(["w1", "w2"])), draw(st.integers(0, 9))
            )
        case "downgrade":
            to = EMPTY if n == 6 and draw(st.booleans()) else Frontier(n)
            return lambda s: compare_and_downgrade(s, reader, 0, 0, to)
        case "merge":
            return Merging(n, draw(st.integers(1, 4)), tuple(draw(st.lists(parts(), max_size=2))))
        case "lease":
            return lambda s: register_leased(s, reader, n)
        case "release":
            return lambda s: downgrade_leased(s, reader, Frontier(n), s.seqno - 1, n)
        case "evolve":
            return lambda s: evolve(s, ", ".join(f"c{i} int" for i in range(n + 1)))
        case "register":
            return lambda s: register_critical(s, reader)
        case "expire":
            return lambda s: expire_critical(s, reader, 0)
        case "admit":
            return lambda s: admit(s, n // 2)
        case "open":
            as_of = draw(st.integers(0, 6))
            return lambda s: open_at(s, n // 2, as_of)
        case "describe":
            return lambda s: describe(s, f"c{n // 4} int", "owner", ("c0",) * (n % 2))
        case "leave":
            return lambda s: expire_leased(s, reader)
        case "overdue":
            return lambda s: aged(s, n)
        case "past":
            return lambda s: release_past(s, s.walltime_ms + n * LEASE_MS // 3)
        case "finalize":
            return finalize
        case "drop rollups":
            return lambda s: drop_rollups(s, s.seqno - n)
        case "swept":
            return lambda s: mark_swept(s, n)
        case _:
            return lambda s: add_rollup(s, Rollup(s.seqno, f"s/rollup/{s.seqno}"))


def aged(state, thirds):
    """Expire readers as if some time had passed, in thirds of a lease."""
    older = replace(state, walltime_ms=state.walltime_ms + thirds * LEASE_MS // 3)
    after, names = expire_overdue(older)
    return (state if after is older else after), names


def appending(step, held, epoch, writer, token):
    """Append at the upper (``step`` 0: and close), or, once closed, anywhere: refusals are part of a history too."""

    def command(state):
        lower = state.upper if state.upper.at is not None else Frontier(3)
        new = EMPTY if step == 0 else Frontier(lower.at + step)
        rows = sum(p.rows for p in held)
        staged = (
            Staged(
                lower,
                new,
                tuple(held),
                rows,
                rows - 2,
                Digest(rows, 7),
                plain=False,
                errors=rows,
                sort=("k",) * (rows % 2),
            ),
        )
        request = Append(
            writer, f"t{token}", epoch, staged if held else (), lower, new, certify="c" if token % 2 else ""
        )
        return append(state, request)

    return command


@dataclass(frozen=True)
class Merging:
    """Merge some adjacent batches into these parts, as far as they have room: a result may be stale or wrong."""

    first: int
    count: int
    held: tuple

    def request(self, state):
        inputs = state.batches[self.first : self.first + self.count]
        if not inputs:
            return None
        kept = self.held if sum(p.rows for p in self.held) <= sum(b.rows for b in inputs) else ()
        rows, diffs = sum(p.rows for p in kept), sum(b.diffs for b in inputs)
        digest = sum((b.digest for b in inputs), NOTHING)
        since = join((state.since, *(b.since for b in inputs)))
        lower, upper = inputs[0].lower, inputs[-1].upper
        return Merge(inputs, Staged(lower, upper, kept, rows, diffs, digest, False, since=since))

    def __call__(self, state):
        request = self.request(state)
        return (state, None) if request is None else apply_merge(state, request)


def history(steps, *, start=FIRST):
    """Apply the steps; return all versions of the shard, and the answers."""
    states, answers = [start], []
    for command in steps:
        before = states[-1]
        try:
            after, answer = command(before)
        except InvalidUsage:
            continue  # no reader of that name is registered
        answers.append((before, after, answer))
        if after is not before:
            states.append(replace(after, seqno=before.seqno + 1, walltime_ms=before.walltime_ms + 3))
    return states, answers


histories = st.lists(commands(), max_size=25)


@given(histories)
def test_a_state_is_what_its_entries_say(steps):
    """Damage: opening a shard gives another state than the one that was committed."""
    for state in history(steps)[0]:
        assert codec.restore("s", state.seqno, codec.entries(state)) == state


@given(histories)
def test_a_state_is_what_its_rollup_says(steps):
    """Damage: a rollup leads to another state."""
    state = history(steps)[0][-1]
    seqno, flat = codec.decode_rollup("s", "k", codec.encode_rollup("k", state))
    assert codec.restore("s", seqno, flat) == state


@given(histories, st.data())
def test_following_the_diffs_is_being_there(steps, data):
    """Damage: a process that caught up sees another state than the one that committed."""
    states, _ = history(steps)
    diffs = [codec.difference(before, after) for before, after in itertools.pairwise(states)]
    sent = [codec.decode_diff("s", d.seqno, codec.encode_diff("s", d)) for d in diffs]
    assert sent == diffs
    begin = data.draw(st.integers(0, len(diffs)), "begin")
    end = data.draw(st.integers(begin, len(diffs)), "end")
    assert codec.apply(states[begin], sent[begin:end]) == states[end]
    assert codec.apply(codec.restore("s", 1, codec.entries(states[0])), sent) == states[-1]


@given(histories)
def test_a_diff_names_only_what_changed_and_the_newest_rollup(steps):
    """Damage: the cost of a commit grows with the state and not with the change."""
    states, _ = history(steps)
    for before, after in itertools.pairwise(states):
        diff = codec.difference(before, after)
        old, new = codec.entries(before), codec.entries(after)
        assert diff.set == {name: value for name, value in new.items() if name not in old or old[name] != value}
        assert set(diff.removed) == old.keys() - new.keys()
        assert diff.rollup == after.rollups[-1]


@given(histories)
def test_every_law_holds_along_every_history(steps):
    """Damage: a legal sequence of calls stops the shard; or a law says nothing."""
    states, _ = history(steps)
    for before, after in itertools.pairwise(states):
        invariants.check(before, after)
        invariants.check(codec.restore("s", before.seqno, codec.entries(before)), after)


@given(histories)
def test_the_content_is_what_was_acknowledged(steps):
    """Laws P3 and P6.  Damage: an acknowledged append is not in the shard, or is there twice."""
    states, answers = history(steps)
    landed = [
        after.batches[-1] for before, after, answer in answers if isinstance(answer, Appended) and after is not before
    ]
    held = [batch for batch in landed if batch.parts]
    assert sum((b.diffs for b in held), 0) == sum(b.diffs for b in states[-1].batches)
    assert sum((b.digest for b in held), NOTHING) == states[-1].digest
    if not any(isinstance(answer, Merged) for _, _, answer in answers):
        assert [batch for batch in states[-1].batches if batch.parts] == held
    assert all(after is before for before, after, answer in answers if isinstance(answer, UpperMismatch | Fenced))


@given(histories)
def test_repeating_any_command_at_once_changes_nothing_more(steps):
    """Damage: after an unknown outcome the retry does it a second time."""
    state = FIRST
    for command in steps:
        try:
            after, _ = command(state)
        except InvalidUsage:
            continue
        retried = retry(command, state, after)
        assert retried is after
        state = after if after is state else replace(after, seqno=state.seqno + 1)


def retry(command, before, after):
    """Evaluate ``command`` again after it landed; an append keeps its bounds, a merge its inputs."""
    if isinstance(command, Merging) and after is not before:
        return apply_merge(after, command.request(before))[0]
    if after is before or after.upper == before.upper:
        return command(after)[0]
    (name,) = [n for n, w in after.writers.items() if before.writers.get(n) != w]
    writer = after.writers[name]
    again = Append("a fresh writer", writer.token, writer.epoch, (), before.upper, after.upper)
    assert append(after, again)[1] == Appended(after.upper)
    return after


def test_every_field_is_stored():
    """Damage: a field that is added to the state is lost at the next restart."""
    full = ShardState(
        "s",
        seqno=9,
        walltime_ms=8,
        epoch=7,
        since=Frontier(1),
        upper=EMPTY,
        digest=Digest(1, 2),
        schema="a int",
        owner="o",
        certificate=None,
        rollups=(Rollup(1, "k"), Rollup(10, "l")),
    )
    state, _ = register_critical(full, "r/x")
    same = codec.restore("s", 9, codec.entries(state))
    assert {f.name for f in fields(ShardState)} == {f.name for f in fields(same)}
    assert same == state


def test_a_removed_entry_is_gone_after_the_diff():
    """Damage: an expired hold comes back to life in every other process."""
    before, _ = register_critical(FIRST, "r")
    after, _ = expire_critical(before, "r", 0)
    diff = codec.difference(before, replace(after, seqno=2))
    assert diff.removed == ("critical/r",)
    assert codec.apply(before, [diff]).criticals == {}


def test_a_certificate_that_is_withdrawn_is_gone():
    """Damage: a shard stays certified for what it no longer holds."""
    before, _ = append(FIRST, Append("w", "t", 0, (), Frontier(0), Frontier(1), certify="c"))
    diff = codec.difference(before, replace(before, seqno=2, certificate=None))
    assert codec.apply(before, [diff]).certificate is None


def test_a_future_format_is_refused_and_says_so():
    """Damage: an older version reads a newer state as something else, and writes on."""
    body = [codec.FORMAT + 1, "whatever comes then"]
    for decode, kind, key in (
        (lambda data: codec.decode_diff("s", 4, data), Kind.DIFF, "s/4"),
        (lambda data: codec.decode_rollup("s", "k", data), Kind.ROLLUP, "k"),
    ):
        with pytest.raises(ConfigError, match=f"strandline 0.{codec.FORMAT + 1} or later is needed"):
            decode(seal(kind, key, codec._encode(body)))


def test_the_stored_form_is_the_released_one():
    """Damage: an upgrade cannot read what the version before it wrote."""
    part = BlobPart("s/parts/1", 10, 3, 5, "")
    staged = Staged(Frontier(0), Frontier(2), (InlinePart(b"ab", 1), part), 4, 2, Digest(6, 7), plain=False, errors=1)
    state, _ = describe(FIRST, "a int", "o")
    state, _ = register_critical(state, "r")
    state, _ = append(state, Append("w", "t", 2, (staged,), Frontier(0), Frontier(2), owner="o", certify="c"))
    assert codec.entries(state) == {
        "walltime_ms": 0,
        "epoch": 2,
        "schema": "a int",
        "owner": "o",
        "since": 0,
        "upper": 2,
        "forgotten": 0,
        "schemas": [],
        "swept_ms": 0,
        "digest": [6, 7],
        "writer/w": ["t", 2, 2],
        "critical/r": [0, 0],
        "certificate": ["c", 2, 6, 7],
        "rollup/1": "s/rollup/1",
        "batch/0": [0, 2, 0, [[0, b"ab", 1], [1, "s/parts/1", 10, 3, 5, ""]], 4, 2, 6, 7, False, 1],
    }
    batch = replace(state.batches[0], parts=(replace(part, keys=KeyRange(-1, 7)),), sort=("a",))
    ordered = codec.entries(replace(state, sort=("a",), batches=(batch,)))
    keys = {"least": -1, "greatest": 7}
    assert ordered["sort"] == ["a"]
    assert ordered["batch/0"] == [0, 2, 0, [[1, "s/parts/1", 10, 3, 5, "", keys]], 4, 2, 6, 7, False, 1, ["a"]]
    diff = codec.difference(FIRST, replace(state, seqno=2))
    assert codec.decode_diff("s", 2, codec.encode_diff("s", diff)) == diff


def test_a_packed_batch_comes_back():
    """Damage: a committed transaction appends other parts than were staged."""
    two = (InlinePart(b"ab", 1), BlobPart("k", 1, 2, 3, "k.crc", keys=KeyRange(None, "z")))
    held = Staged(Frontier(3), EMPTY, two, 3, -1, Digest(5, 6), plain=False, errors=1)
    for each in (held, replace(held, sort=("k", "é"))):
        assert codec.unpack_staged(codec.pack_staged(each)) == each
