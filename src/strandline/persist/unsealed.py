"""What a stream does to its shard: write at times that are not complete yet, seal, let go of the past.

An *unsealed* batch is durable and in no read: its times may still get company.  Sealing through a time makes one batch
of the trace out of everything written before that time.  A written batch that straddles it must have been cut there
first: the transition says so (`Straddling`), the caller cuts it (an I/O) and asks again with the pieces.

A *pour* is a run of such steps in the order they were called; it is committed whole, by one version, or not at all.
The first step that can never be done is told (`Refused`), and then nothing was done.

Traps: a token says that a whole pour landed, so a refusal must commit nothing; a piece of a cut batch is a batch of its
own, and the parts of what was cut are named by nothing afterwards.

Source: design page "persist" (the stream client; unsealed batches).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from strandline.errors import Indeterminate
from strandline.frontier.antichain import MINIMUM, Frontier, join
from strandline.persist.batch import NOTHING, Staged
from strandline.persist.state import (
    WRITERS_MAX,
    Append,
    Appended,
    Fenced,
    ShardState,
    append,
    compare_and_downgrade,
    refuse_swept,
    register_critical,
    remember,
)

OWNER: Final = "stream"
"""Owns streamed shards: nobody else may append to them, and a stream to no other."""
HOLD: Final = "stream"
"""The critical reader by which a stream keeps its past until `Allow`; it is the collection's, so its token is no
one's."""
HOLD_TOKEN: Final = 0


@dataclass(frozen=True, slots=True)
class Write:
    """Keep ``staged``, all of it at times that are not sealed, under ``name``, which is never given again."""

    name: str
    staged: Staged


@dataclass(frozen=True, slots=True)
class Seal:
    """Complete all times before ``upper``; those that are complete already stay so."""

    upper: Frontier


@dataclass(frozen=True, slots=True)
class Allow:
    """Nobody who writes needs times before ``since`` to be told apart any more."""

    since: Frontier


Step: TypeAlias = Write | Seal | Allow


@dataclass(frozen=True, slots=True)
class Pour:
    """Steps to do as one.

    ``pieces``: what batches were cut into, by the name of the batch that was cut.  ``doubt``: the version and the upper
    that the first attempt went by of which nobody was told what became; None: each is known not to have landed.
    """

    writer: str
    token: str
    epoch: int
    steps: tuple[Step, ...]
    pieces: Mapping[str, tuple[Write, ...]] = field(default_factory=dict)
    doubt: tuple[int, Frontier] | None = None


@dataclass(frozen=True, slots=True)
class Poured:
    """All steps are done and durable, now or already before."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The step ``index`` writes at times that are sealed up to ``upper``; nothing was done."""

    index: int
    upper: Frontier


@dataclass(frozen=True, slots=True)
class Straddling:
    """These batches must be cut at ``at`` first; nothing was done."""

    batches: Mapping[str, Staged]
    at: Frontier


Outcome: TypeAlias = Poured | Refused | Straddling | Fenced


def pour(state: ShardState, request: Pour) -> tuple[ShardState, Outcome]:
    """Do the steps of ``request``, all of them or none; at most once by token.

    Raises `Indeterminate`: an attempt is in doubt, and nothing shows any more whether it was done.
    """
    if _landed(state, request):
        return state, Poured()
    if request.epoch < state.epoch:
        return state, Fenced(state.epoch)
    upper, since = state.upper, MINIMUM
    unsealed = dict(_cut(state.unsealed, request.pieces))
    for index, step in enumerate(request.steps):
        match step:
            case Write(name, staged):
                refuse_swept(state, staged)
                if not upper <= staged.lower:
                    return state, Refused(index, upper)
                unsealed |= _cut({name: staged}, request.pieces)
            case Seal(to):
                upper = join((upper, to))
            case Allow(to):
                since = join((since, to))
    straddling = {n: s for n, s in unsealed.items() if s.lower < upper and not s.upper <= upper}
    if straddling:
        return state, Straddling(straddling, upper)
    return _done(state, request, upper, since, unsealed), Poured()


def hold(state: ShardState) -> tuple[ShardState, Frontier]:
    """Keep a fresh stream's past until `Allow` lets go of it; answer where the hold stands."""
    after, held = register_critical(state, HOLD)
    return after, held.since


def _landed(state: ShardState, request: Pour) -> bool:
    """Tell whether ``request`` is done: by its token, or, if that may be forgotten, by what it wrote."""
    if any(last.token == request.token for last in state.writers.values()):
        return True
    if request.doubt is None:
        return False
    seqno, seen = request.doubt
    if len(state.writers) < WRITERS_MAX or seqno == state.seqno or not seen <= state.forgotten:
        return False  # its token would be remembered
    written = [step for step in request.steps if isinstance(step, Write)]
    batches = _cut({step.name: step.staged for step in written}, request.pieces)
    # What lies beyond the upper was neither sealed nor cut by anybody: it is there under its name, if it ever was.
    beyond = [name in state.unsealed for name, staged in batches.items() if state.upper <= staged.lower]
    if written and not beyond:
        raise Indeterminate(
            f"shard {state.shard!r}: whether a write tried at version {seqno} landed is not known any more: its times "
            f"are sealed, and of more than {WRITERS_MAX} writers only the last are remembered"
        )
    return any(beyond)  # to seal and to let go once more does no harm


def _done(
    state: ShardState, request: Pour, upper: Frontier, since: Frontier, unsealed: Mapping[str, Staged]
) -> ShardState:
    after = state
    if unsealed != state.unsealed or state.upper < upper:
        left = {name: staged for name, staged in unsealed.items() if not staged.upper <= upper}
        sealed = tuple(unsealed[name] for name in sorted(unsealed.keys() - left.keys()))
        whole = Append(request.writer, request.token, request.epoch, sealed, state.upper, upper, OWNER)
        after = after.but(unsealed=left)
        if state.upper < upper:
            after, answer = append(after, whole)
            assert isinstance(answer, Appended), "the upper, the epoch and the token were looked at before"
        else:
            after = remember(after.but(epoch=request.epoch), whole)
    held = state.criticals.get(HOLD)
    if held is not None and held.since < since:
        after, _ = compare_and_downgrade(after, HOLD, HOLD_TOKEN, HOLD_TOKEN, since)
    return after


def _cut(batches: Mapping[str, Staged], pieces: Mapping[str, tuple[Write, ...]]) -> Mapping[str, Staged]:
    """Return ``batches``, each that was cut as its pieces, which may have been cut in turn."""
    found: dict[str, Staged] = {}
    for name, staged in batches.items():
        if name not in pieces:
            found[name] = staged
            continue
        parts = pieces[name]
        assert sum((p.staged.digest for p in parts), NOTHING) == staged.digest, f"batch {name!r} is not its pieces"
        found |= _cut({piece.name: piece.staged for piece in parts}, pieces)
    return found
