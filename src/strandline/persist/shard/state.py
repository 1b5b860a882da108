"""The state of a shard: a pure value, and every change of it a pure function.

A shard is the durable form of one collection: a set of updates ``(row, time, diff)``.  For every ``t`` with ``since <=
t < upper`` the sum of diffs at times ``<= t`` is fixed for ever: that is the meaning of *definite*.  The state names
the batches that hold the updates; they are contiguous from the minimum to ``upper``.

Each transition takes the state and returns ``(new state, answer)``; returning the very same state means "nothing to
commit". Transitions are evaluated anew after a lost race or an unknown outcome, so each of them recognises its own
earlier success: an append by its token, every other transition by being monotone.

Traps: ``since`` may legally exceed ``upper``.  Either may be empty: ``upper`` empty = closed, readable; ``since`` empty
= unreadable, writable; both = tombstone.

The values of this room are msgspec structs.  They behave as frozen dataclasses do, and are made in a tenth of the time:
each commit makes dozens of them, and opening a shard makes hundreds.

Laws: `persist/shard/invariants.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from strandline.errors import Indeterminate, InvalidUsage
from strandline.frontier import EMPTY, MINIMUM, Frontier, as_time, join, meet
from strandline.persist.shard.batch import (
    NOTHING,
    Batch,
    BlobPart,
    Digest,
    Part,
    Staged,
    as_batch,
    named_time,
    parts_prefix,
)

FIRST_SEQNO: Final = 1
WRITERS_MAX: Final = 64
"""How many writers a state remembers, those that appended last: more than have a retry in flight at once."""


class Writer(msgspec.Struct, frozen=True):
    """A writer's last append: the writer looks for it after an unknown outcome."""

    token: str
    upper: Frontier
    epoch: int


class Critical(msgspec.Struct, frozen=True):
    """A hold on since that never expires; ``opaque`` is its owner's fencing token."""

    since: Frontier
    opaque: int


class Leased(msgspec.Struct, frozen=True):
    """A hold that lasts as long as its reader beats: on ``since``, and on the parts of versions from ``seqno`` on.

    ``beat_ms``: when the reader last beat, by the walltime of the state.
    """

    since: Frontier
    seqno: int
    beat_ms: int


class Certificate(msgspec.Struct, frozen=True):
    """A sink's statement: ``digest`` is that of what dataflow ``fingerprint`` desired of its inputs before ``upper``.

    So it names the state of the inputs that the shard's contents come from.  The shard's own upper may be further.
    """

    fingerprint: str
    upper: Frontier
    digest: Digest


class Rollup(msgspec.Struct, frozen=True):
    """A full copy of the state at ``seqno``, in Blob under ``key``."""

    seqno: int
    key: str


class ShardState(msgspec.Struct, frozen=True):
    """The state of a shard at one version.

    ``schemas``: earlier values of ``schema``, oldest first (`persist/shard/evolution.py`).  ``sort``: the columns by
    which batches are sorted from now on; empty: by all of them.  ``owner``: the only component that may append; empty:
    any writer.  ``unsealed``: batches that a stream wrote at times that are not complete yet, by a name that is used
    once (`persist/together/unsealed.py`).  ``forgotten``: an append that expected an upper before this may have landed
    although no writer entry shows it.  ``swept_ms``: parts begun before this can no longer be appended
    (`persist/upkeep/collect.py`).
    """

    shard: str
    seqno: int = 0
    walltime_ms: int = 0
    epoch: int = 0
    since: Frontier = MINIMUM
    upper: Frontier = MINIMUM
    digest: Digest = NOTHING
    schema: str = ""
    schemas: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    owner: str = ""
    batches: tuple[Batch, ...] = ()
    unsealed: Mapping[str, Staged] = msgspec.field(default_factory=dict)
    writers: Mapping[str, Writer] = msgspec.field(default_factory=dict)
    forgotten: Frontier = MINIMUM
    criticals: Mapping[str, Critical] = msgspec.field(default_factory=dict)
    leased: Mapping[str, Leased] = msgspec.field(default_factory=dict)
    certificate: Certificate | None = None
    rollups: tuple[Rollup, ...] = ()
    swept_ms: int = 0

    @property
    def tombstone(self) -> bool:
        """Whether the shard can no longer be read or written."""
        return self.since.at is None and self.upper.at is None

    @property
    def inline_bytes(self) -> int:
        """Bytes of the state taken by inline parts."""
        total = 0
        for batch in self.batches:
            total += batch.inline_bytes
        for staged in self.unsealed.values():
            total += as_batch(staged).inline_bytes
        return total

    @property
    def parts(self) -> Iterator[Part]:
        """Every part that this version names: in its batches and in its unsealed batches."""
        for batch in self.batches:
            yield from batch.parts
        for staged in self.unsealed.values():
            yield from staged.parts


# ---- answers ---------------------------------------------------------------------------------------------------------


class Appended(msgspec.Struct, frozen=True):
    """The append is durable, by this call or an earlier one; it advanced the shard to ``upper``."""

    upper: Frontier


class UpperMismatch(msgspec.Struct, frozen=True):
    """The append was refused and changed nothing: the shard's upper is ``actual``.  The caller must act."""

    actual: Frontier


class Fenced(msgspec.Struct, frozen=True):
    """The append was refused: epoch ``epoch`` has been admitted since.  The writer must stop.

    Trap: a shard remembers `WRITERS_MAX` writers.  If more writers came since, this is the answer even for an append
    that landed; so the writer must not delete what it staged.
    """

    epoch: int


AppendOutcome: TypeAlias = Appended | UpperMismatch | Fenced


class Append(msgspec.Struct, frozen=True):
    """A request to append.  ``token`` is used only for this request and its retries.

    ``certify``: the dataflow that desired what the shard then holds; empty: nothing is certified.  ``read``: how far
    that dataflow has read its inputs; None: to ``new``.

    ``begun_ms``: when the oldest part of another shard that the appended records name was begun; None: there is none.

    ``writer`` is the key under which the state remembers the token; two requests must not use it at the same time.

    ``schema``: the one that the rows are of, which must be the shard's; empty: it is not compared.
    """

    writer: str
    token: str
    epoch: int
    staged: tuple[Staged, ...]
    expected: Frontier
    new: Frontier
    owner: str = ""
    certify: str = ""
    begun_ms: int | None = None
    read: Frontier | None = None
    schema: str = ""


class Downgraded(msgspec.Struct, frozen=True):
    """The hold is at the requested since or beyond it; ``since`` is where it stands."""

    since: Frontier


class OpaqueMismatch(msgspec.Struct, frozen=True):
    """Another owner of the critical reader has written ``opaque`` since."""

    opaque: int
    since: Frontier


# ---- transitions -----------------------------------------------------------------------------------------------------


def append(state: ShardState, request: Append) -> tuple[ShardState, AppendOutcome]:
    """Append staged batches as one, iff the upper is as expected; at most once per token.

    Raises:
        InvalidUsage: the request could never succeed: bounds out of order, a batch outside them, a foreign owner.
        Indeterminate: so many writers came since that the state no longer shows whether it landed.
    """
    for last in state.writers.values():
        if last.token == request.token:
            return state, Appended(last.upper)  # it landed earlier, and its answer was lost or its writer restarted
    if request.epoch < state.epoch:
        return state, Fenced(state.epoch)
    if state.upper != request.expected:
        if request.expected < state.forgotten:
            raise Indeterminate(
                f"shard {state.shard!r}: whether an append at {request.expected} landed is not remembered: more than "
                f"{WRITERS_MAX} writers came after it; its upper is {state.upper}"
            )
        return state, UpperMismatch(state.upper)
    _refuse_impossible(state, request)
    batch = _combine(request)
    writers, forgotten = _remembered(state, request)
    after = replace(
        state,
        epoch=request.epoch,
        upper=request.new,
        digest=state.digest + batch.digest,
        batches=_push(state.batches, batch),
        writers=writers,
        forgotten=forgotten,
    )
    if request.certify:
        read = request.new if request.read is None else request.read
        after = replace(after, certificate=Certificate(request.certify, read, after.digest))
    return after, Appended(request.new)


def admit(state: ShardState, epoch: int) -> tuple[ShardState, int]:
    """Raise the epoch to ``epoch``, fencing all older writers; return the epoch that is now in force."""
    if epoch <= state.epoch or state.tombstone:
        return state, state.epoch
    return replace(state, epoch=epoch), epoch


def describe(state: ShardState, schema: str, owner: str, sort: tuple[str, ...] = ()) -> tuple[ShardState, None]:
    """Register the schema and the owner of a fresh shard, and how it is sorted from now on; it may be repeated.

    Raises `InvalidUsage` if it is already described with another schema or owner.
    """
    if (state.schema, state.owner, state.sort) == (schema, owner, sort) or state.tombstone:
        return state, None
    if (state.schema or state.owner) and (state.schema, state.owner) != (schema, owner):
        raise InvalidUsage(
            f"shard {state.shard!r} is registered with schema {state.schema!r} and owner {state.owner!r}; "
            f"it cannot be opened with {schema!r} and {owner!r}"
        )
    return replace(state, schema=schema, owner=owner, sort=sort), None


def register_critical(state: ShardState, reader: str) -> tuple[ShardState, Critical]:
    """Register a critical reader at the shard's since, or find it where it was."""
    known = state.criticals.get(reader)
    if known is not None:
        return state, known
    fresh = Critical(state.since, 0)
    if state.tombstone:
        return state, fresh
    return replace(state, criticals={**state.criticals, reader: fresh}), fresh


def compare_and_downgrade(
    state: ShardState, reader: str, expected: int, opaque: int, since: Frontier
) -> tuple[ShardState, Downgraded | OpaqueMismatch]:
    """Move a critical hold forward iff its token is ``expected``, and leave ``opaque`` there.  It never goes back.

    Raises `InvalidUsage` if the reader is not registered.
    """
    if state.tombstone:
        return state, Downgraded(EMPTY)
    held = state.criticals.get(reader)
    if held is None:
        raise InvalidUsage(f"shard {state.shard!r} has no critical reader {reader!r}; register it first")
    if held.opaque != expected:
        return state, OpaqueMismatch(held.opaque, held.since)
    moved = Critical(join((held.since, since)), opaque)
    if moved == held:
        return state, Downgraded(held.since)
    return _with_criticals(state, {**state.criticals, reader: moved}), Downgraded(moved.since)


def expire_critical(state: ShardState, reader: str, expected: int) -> tuple[ShardState, OpaqueMismatch | None]:
    """Release the hold of a critical reader iff its token is ``expected``; return None once it is gone.

    That alone never advances the shard's since: the next downgrade does.
    """
    held = state.criticals.get(reader)
    if held is None:
        return state, None
    if held.opaque != expected:
        return state, OpaqueMismatch(held.opaque, held.since)
    return replace(state, criticals={r: c for r, c in state.criticals.items() if r != reader}), None


def add_rollup(state: ShardState, rollup: Rollup) -> tuple[ShardState, bool]:
    """Name a rollup if it is newer than the newest one; return whether it is now named."""
    if rollup in state.rollups:
        return state, True
    if state.rollups and rollup.seqno <= state.rollups[-1].seqno:
        return state, False
    return replace(state, rollups=(*state.rollups, rollup)), True


def drop_rollups(state: ShardState, before: int) -> tuple[ShardState, tuple[Rollup, ...]]:
    """Drop the names of rollups older than ``before``; return those rollups.  The newest one stays."""
    dropped = tuple(rollup for rollup in state.rollups[:-1] if rollup.seqno < before)
    if not dropped:
        return state, ()
    return replace(state, rollups=state.rollups[len(dropped) :]), dropped


def mark_swept(state: ShardState, before_ms: int) -> tuple[ShardState, None]:
    """From now on, refuse appends of parts begun before ``before_ms``, so that a sweep may delete them."""
    return (state if before_ms <= state.swept_ms else replace(state, swept_ms=before_ms)), None


def finalize(state: ShardState) -> tuple[ShardState, None]:
    """Empty the state of a shard that can no longer be read or written.

    Raises `InvalidUsage` unless its since and its upper are both empty.
    """
    for frontier, name in ((state.since, "since"), (state.upper, "upper")):
        if not frontier.empty:
            raise InvalidUsage(f"shard {state.shard!r} cannot be finalized: its {name} is {frontier}, not []")
    nothing = Batch(MINIMUM, EMPTY, MINIMUM, (), 0, 0, NOTHING, plain=True)
    after = replace(
        state,
        batches=(nothing,),
        digest=NOTHING,
        unsealed={},
        writers={},
        criticals={},
        leased={},
        certificate=None,
    )
    return (state if after == state else after), None


def open_at(state: ShardState, epoch: int, as_of: int) -> tuple[ShardState, Frontier]:
    """Start the history of an empty shard at ``as_of``, refusing reads before it; return the shard's since.

    A view's first step appends its initial contents at the ``as_of`` of its dataflow.  A shard that has a history keeps
    it.  Earlier holds move to ``as_of`` too, because there was no history for them to keep.
    """
    start = Frontier(as_of)
    if state.upper != MINIMUM or start <= state.since or epoch < state.epoch:
        return state, state.since
    criticals = {reader: Critical(join((c.since, start)), c.opaque) for reader, c in state.criticals.items()}
    leased = {reader: replace(each, since=join((each.since, start))) for reader, each in state.leased.items()}
    return replace(state, since=start, epoch=epoch, criticals=criticals, leased=leased), start


def since_of(state: ShardState) -> Frontier:
    """Return the meet of all holds, or since if that is further.  Call it only when a hold moves."""
    critical = meet(hold.since for hold in state.criticals.values())
    leased = meet(hold.since for hold in state.leased.values())
    return join((state.since, meet((critical, leased))))


def _with_criticals(state: ShardState, criticals: Mapping[str, Critical]) -> ShardState:
    after = replace(state, criticals=criticals)
    return replace(after, since=since_of(after))


def _refuse_impossible(state: ShardState, request: Append) -> None:
    if request.owner != state.owner:
        raise InvalidUsage(
            f"shard {state.shard!r} may only be appended to by {state.owner or 'a plain writer'!r}, "
            f"not by {request.owner or 'a plain writer'!r}"
        )
    if request.schema and request.schema != state.schema:
        raise InvalidUsage(
            f"shard {state.shard!r} has the columns {state.schema} now, and this writer's rows have {request.schema}: "
            "open it again, and read them again"
        )
    if not request.expected < request.new:
        raise InvalidUsage(
            f"shard {state.shard!r}: an append must advance the upper {request.expected}, not to {request.new}"
        )
    if request.begun_ms is not None and request.begun_ms < state.swept_ms:
        raise InvalidUsage(f"shard {state.shard!r}: the append names parts begun too long ago; stage them again")
    for staged in request.staged:
        if staged.since != MINIMUM:
            raise InvalidUsage(
                f"shard {state.shard!r}: a batch that compaction wrote replaces its inputs; it cannot be appended"
            )
        refuse_swept(state, staged)
        if not (request.expected <= staged.lower and staged.upper <= request.new):
            raise InvalidUsage(
                f"shard {state.shard!r}: a batch staged for [{staged.lower}, {staged.upper}) "
                f"does not fit the append [{request.expected}, {request.new})"
            )


def refuse_swept(state: ShardState, staged: Staged) -> None:
    """Raise `InvalidUsage` if a part of ``staged`` is so old that it may have been deleted as leaked."""
    if any(begun < state.swept_ms for begun in begun_ms(state.shard, staged)):
        raise InvalidUsage(f"shard {state.shard!r}: parts of a batch were begun too long ago; stage it again")


def begun_ms(shard: str, staged: Staged) -> Iterator[int]:
    """Yield when the parts of ``staged``, which is for ``shard``, were begun."""
    for part in staged.parts:
        if isinstance(part, BlobPart):
            begun = named_time(parts_prefix(shard), part.key)
            if begun is not None:
                yield begun


def _combine(request: Append) -> Batch:
    digest = NOTHING
    for staged in request.staged:
        digest = digest + staged.digest
    sorts = {staged.sort for staged in request.staged}
    return Batch(
        lower=request.expected,
        upper=request.new,
        since=MINIMUM,
        parts=tuple(part for staged in request.staged for part in staged.parts),
        rows=sum(staged.rows for staged in request.staged),
        diffs=sum(staged.diffs for staged in request.staged),
        digest=digest,
        plain=all(staged.plain for staged in request.staged),
        errors=sum(staged.errors for staged in request.staged),
        sort=sorts.pop() if len(sorts) == 1 else (),
    )


def _push(batches: Sequence[Batch], batch: Batch) -> tuple[Batch, ...]:
    # Empty appends coalesce, so that an idle shard's state does not grow; a batch with parts ends the run.
    if batches and not batches[-1].parts and not batch.parts:
        return (*batches[:-1], replace(batches[-1], upper=batch.upper))
    return (*batches, batch)


def remember(state: ShardState, request: Append) -> ShardState:
    """Remember this request's token as its writer's last; the state keeps at most `WRITERS_MAX` writers."""
    writers, forgotten = _remembered(state, request)
    return replace(state, writers=writers, forgotten=forgotten)


def _remembered(state: ShardState, request: Append) -> tuple[dict[str, Writer], Frontier]:
    kept = {name: writer for name, writer in state.writers.items() if name != request.writer}
    forgotten = state.forgotten
    while len(kept) >= WRITERS_MAX:
        oldest = min(kept, key=lambda name: (as_time(kept[name].upper), kept[name].epoch, name))
        forgotten = join((forgotten, kept.pop(oldest).upper))
    kept[request.writer] = Writer(request.token, request.new, request.epoch)
    return kept, forgotten
