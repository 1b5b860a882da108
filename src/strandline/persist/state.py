"""The state of a shard: a pure value, and every change of it a pure function.

A shard is the durable form of one collection: a set of updates ``(row, time, diff)``.  For every ``t`` with ``since <=
t < upper`` the sum of diffs at times ``<= t`` is fixed for ever: that is what *definite* means.  The state names the
batches that hold the updates; they are contiguous from the minimum to ``upper``.

Each transition takes the state and returns ``(new state, answer)``; returning the very same state means "nothing to
commit". Transitions are evaluated anew after a lost race or an unknown outcome, so each of them recognises its own
earlier success: an append by its token, everything else by being monotone.

Traps: ``since`` may legally exceed ``upper``.  Either may be empty: ``upper`` empty = closed, readable; ``since`` empty
= unreadable, writable; both = tombstone.

Source: design page "persist" (shard state, details that cost others years).  Laws: `persist/invariants.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from strandline.errors import Indeterminate, InvalidUsage
from strandline.frontier.antichain import EMPTY, MINIMUM, Frontier, as_time, join, meet
from strandline.persist.batch import NOTHING, Batch, BlobPart, Digest, Part, Staged, as_batch
from strandline.persist.objects import named_time, parts_prefix

FIRST_SEQNO: Final = 1
WRITERS_MAX: Final = 64
"""How many writers are remembered, those that appended last: more than have a retry in flight at once."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer's last append: what it looks for when it was not told the outcome."""

    token: str
    upper: Frontier
    epoch: int


@dataclass(frozen=True, slots=True)
class Critical:
    """A hold on since that no clock ever expires; ``opaque`` is its owner's fencing token."""

    since: Frontier
    opaque: int


@dataclass(frozen=True, slots=True)
class Leased:
    """A hold that lasts as long as its reader beats: on ``since``, and on what the versions from ``seqno`` on name.

    ``beat_ms``: when the reader last showed that it is there, by the walltime of the state.
    """

    since: Frontier
    seqno: int
    beat_ms: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """A sink states: at ``upper`` this shard held, by digest, exactly what the dataflow ``fingerprint`` desired."""

    fingerprint: str
    upper: Frontier
    digest: Digest


@dataclass(frozen=True, slots=True)
class Rollup:
    """A full copy of the state at ``seqno``, in Blob under ``key``."""

    seqno: int
    key: str


@dataclass(frozen=True)
class ShardState:
    """All that is known of a shard at one version.  Each version is made from the one before it by `but`.

    ``schemas``: what ``schema`` was before, oldest first (`persist/evolution.py`).  ``owner``: the only room that may
    append; empty: anybody.  ``unsealed``: what a stream wrote at times that are not complete yet, by a name that is
    given once (`persist/unsealed.py`).  ``forgotten``: an append that was expected at an upper before this may have
    landed and be remembered no more.  ``swept_ms``: parts begun before this cannot be appended any more
    (`persist/collect.py`).
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
    owner: str = ""
    batches: tuple[Batch, ...] = ()
    unsealed: Mapping[str, Staged] = field(default_factory=dict)
    writers: Mapping[str, Writer] = field(default_factory=dict)
    forgotten: Frontier = MINIMUM
    criticals: Mapping[str, Critical] = field(default_factory=dict)
    leased: Mapping[str, Leased] = field(default_factory=dict)
    certificate: Certificate | None = None
    rollups: tuple[Rollup, ...] = ()
    swept_ms: int = 0

    def but(self, **changes: Any) -> ShardState:
        """Return this state with ``changes`` of some fields, by their names.

        Each commit makes several states.  `dataclasses.replace` would go through all fields for each, ten times slower.
        """
        after = object.__new__(ShardState)
        fields = vars(after)
        fields.update(vars(self), **changes)
        assert len(fields) == len(vars(self)), f"a state has no {changes.keys() - vars(self).keys()}"
        return after

    @property
    def tombstone(self) -> bool:
        """Whether nobody can read or write it any more."""
        return self.since.empty and self.upper.empty

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
        """Every part that this version names: those of its batches, and of what is not sealed yet."""
        for batch in self.batches:
            yield from batch.parts
        for staged in self.unsealed.values():
            yield from staged.parts


# ---- answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Appended:
    """The append is durable, now or already before; ``upper`` is what it advanced the shard to."""

    upper: Frontier


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The append was refused and changed nothing: the shard's upper is ``actual``.  The caller's move."""

    actual: Frontier


@dataclass(frozen=True, slots=True)
class Fenced:
    """The append was refused: epoch ``epoch`` has been admitted since.  Stop, and change nothing any more.

    Trap: a shard remembers `WRITERS_MAX` writers.  A writer that slept through more successors than that is told this
    even if its append landed; so what it staged must be left alone.
    """

    epoch: int


AppendOutcome: TypeAlias = Appended | UpperMismatch | Fenced


@dataclass(frozen=True, slots=True)
class Append:
    """A request to append.  ``token`` is never used twice, but for retries of this very request.

    ``begun_ms``: when the oldest part was begun that what is appended names in another shard; None: there is none.

    ``writer`` names the memory that the token is kept in: it must not be used by two requests at a time.
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


@dataclass(frozen=True, slots=True)
class Downgraded:
    """The hold is (at least) where it was asked to be; ``since`` is where it stands."""

    since: Frontier


@dataclass(frozen=True, slots=True)
class OpaqueMismatch:
    """Another owner of the critical reader has written ``opaque`` since."""

    opaque: int
    since: Frontier


# ---- transitions -----------------------------------------------------------------------------------------------------


def append(state: ShardState, request: Append) -> tuple[ShardState, AppendOutcome]:
    """Append staged batches as one, iff the upper is as expected; at most once by token.

    Raises:
        InvalidUsage: the request could never succeed: bounds out of order, a batch outside them, a foreign owner.
        Indeterminate: so many writers came since that nobody knows any more whether it landed.
    """
    for last in state.writers.values():
        if last.token == request.token:
            return state, Appended(last.upper)  # it landed earlier: its answer was lost, or its writer restarted
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
    after = state.but(
        epoch=request.epoch,
        upper=request.new,
        digest=state.digest + batch.digest,
        batches=_push(state.batches, batch),
        writers=writers,
        forgotten=forgotten,
    )
    if request.certify:
        after = after.but(certificate=Certificate(request.certify, request.new, after.digest))
    return after, Appended(request.new)


def admit(state: ShardState, epoch: int) -> tuple[ShardState, int]:
    """Raise the epoch to ``epoch``, fencing all older writers; answer the epoch that now holds."""
    if epoch <= state.epoch or state.tombstone:
        return state, state.epoch
    return state.but(epoch=epoch), epoch


def describe(state: ShardState, schema: str, owner: str) -> tuple[ShardState, None]:
    """Register the schema and the owner of a fresh shard; the same again changes nothing.

    Raises `InvalidUsage` if it is already described otherwise.
    """
    if (state.schema, state.owner) == (schema, owner) or state.tombstone:
        return state, None
    if state.schema or state.owner:
        raise InvalidUsage(
            f"shard {state.shard!r} is registered with schema {state.schema!r} and owner {state.owner!r}; "
            f"it cannot be opened with {schema!r} and {owner!r}"
        )
    return state.but(schema=schema, owner=owner), None


def register_critical(state: ShardState, reader: str) -> tuple[ShardState, Critical]:
    """Register a critical reader at the shard's since, or find it where it was."""
    known = state.criticals.get(reader)
    if known is not None:
        return state, known
    fresh = Critical(state.since, 0)
    if state.tombstone:
        return state, fresh
    return state.but(criticals={**state.criticals, reader: fresh}), fresh


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
    """Drop a critical reader iff its token is ``expected``; answer None once it is gone.

    That alone never advances the shard's since: the next downgrade does.
    """
    held = state.criticals.get(reader)
    if held is None:
        return state, None
    if held.opaque != expected:
        return state, OpaqueMismatch(held.opaque, held.since)
    return state.but(criticals={r: c for r, c in state.criticals.items() if r != reader}), None


def add_rollup(state: ShardState, rollup: Rollup) -> tuple[ShardState, bool]:
    """Name a rollup; answer whether it is (now) named.  One that is not newer than the newest is not wanted."""
    if rollup in state.rollups:
        return state, True
    if state.rollups and rollup.seqno <= state.rollups[-1].seqno:
        return state, False
    return state.but(rollups=(*state.rollups, rollup)), True


def drop_rollups(state: ShardState, before: int) -> tuple[ShardState, tuple[Rollup, ...]]:
    """Name no rollup older than ``before`` any more; answer which went.  The newest one stays."""
    dropped = tuple(rollup for rollup in state.rollups[:-1] if rollup.seqno < before)
    if not dropped:
        return state, ()
    return state.but(rollups=state.rollups[len(dropped) :]), dropped


def mark_swept(state: ShardState, before_ms: int) -> tuple[ShardState, None]:
    """From now on no part begun before ``before_ms`` can be appended, or named by what is: it may be deleted."""
    return (state if before_ms <= state.swept_ms else state.but(swept_ms=before_ms)), None


def finalize(state: ShardState) -> tuple[ShardState, None]:
    """Forget all that a shard holds which nobody can read or write any more.

    Raises `InvalidUsage` unless its since and its upper are both empty.
    """
    for frontier, name in ((state.since, "since"), (state.upper, "upper")):
        if not frontier.empty:
            raise InvalidUsage(f"shard {state.shard!r} cannot be finalized: its {name} is {frontier}, not []")
    nothing = Batch(MINIMUM, EMPTY, MINIMUM, (), 0, 0, NOTHING, plain=True)
    after = state.but(
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
    """Start the history of an empty shard at ``as_of``: reads before it are refused.  Answer the shard's since.

    A view's first step appends its initial contents at the ``as_of`` of its dataflow.  A shard that has a history keeps
    it.  Holds taken before then move along: there was nothing that they could have kept.
    """
    start = Frontier(as_of)
    if state.upper != MINIMUM or start <= state.since or epoch < state.epoch:
        return state, state.since
    criticals = {reader: Critical(join((c.since, start)), c.opaque) for reader, c in state.criticals.items()}
    leased = {reader: replace(each, since=join((each.since, start))) for reader, each in state.leased.items()}
    return state.but(since=start, epoch=epoch, criticals=criticals, leased=leased), start


def since_of(state: ShardState) -> Frontier:
    """Return how far since may go: to the meet of all holds, never back.  Only a hold that moves may ask."""
    critical = meet(hold.since for hold in state.criticals.values())
    leased = meet(hold.since for hold in state.leased.values())
    return join((state.since, meet((critical, leased))))


def _with_criticals(state: ShardState, criticals: Mapping[str, Critical]) -> ShardState:
    after = state.but(criticals=criticals)
    return after.but(since=since_of(after))


def _refuse_impossible(state: ShardState, request: Append) -> None:
    if request.owner != state.owner:
        raise InvalidUsage(
            f"shard {state.shard!r} may only be appended to by {state.owner or 'a plain writer'!r}, "
            f"not by {request.owner or 'a plain writer'!r}"
        )
    if not request.expected < request.new:
        raise InvalidUsage(
            f"shard {state.shard!r}: an append must advance the upper {request.expected}, not to {request.new}"
        )
    if request.begun_ms is not None and request.begun_ms < state.swept_ms:
        raise InvalidUsage(f"shard {state.shard!r}: parts that it would name were begun so long ago; stage them again")
    for staged in request.staged:
        if staged.since != MINIMUM:
            raise InvalidUsage(
                f"shard {state.shard!r}: what compaction wrote takes its inputs' place; it is not appended"
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
        raise InvalidUsage(f"shard {state.shard!r}: parts of a batch were begun so long ago; stage it again")


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
    )


def _push(batches: Sequence[Batch], batch: Batch) -> tuple[Batch, ...]:
    # Empty appends coalesce, so that an idle shard's state does not grow; a batch with parts ends the run.
    if batches and not batches[-1].parts and not batch.parts:
        return (*batches[:-1], replace(batches[-1], upper=batch.upper))
    return (*batches, batch)


def remember(state: ShardState, request: Append) -> ShardState:
    """Keep this request's token as its writer's last; no more than `WRITERS_MAX` writers are remembered."""
    writers, forgotten = _remembered(state, request)
    return state.but(writers=writers, forgotten=forgotten)


def _remembered(state: ShardState, request: Append) -> tuple[dict[str, Writer], Frontier]:
    kept = {name: writer for name, writer in state.writers.items() if name != request.writer}
    forgotten = state.forgotten
    while len(kept) >= WRITERS_MAX:
        oldest = min(kept, key=lambda name: (as_time(kept[name].upper), kept[name].epoch, name))
        forgotten = join((forgotten, kept.pop(oldest).upper))
    kept[request.writer] = Writer(request.token, request.new, request.epoch)
    return kept, forgotten
