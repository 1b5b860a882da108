"""Bugs that are planted in streams and in writes over several collections, to prove that their simulation sees them.

Trap: as `planted.bugs`: these know private names on purpose; when one goes, its bug must be planted anew.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from planted.bugs import Bug, registrar
from strandline.errors import InvalidUsage, StoreError, Unavailable
from strandline.frontier import Frontier
from strandline.persist.handles.register import Named, Names
from strandline.persist.shard.state import ShardState
from strandline.persist.together import multi, stream, unsealed
from strandline.persist.together.transactions import Transactions
from strandline.persist.together.unsealed import Outcome, Pour, Poured, Seal, Write

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


# ---- the line of calls -----------------------------------------------------------------------------------------------


@bug("seals overtake the writes that were called before them", (unsealed.Line, "_next"))
def seals_first(self: Any) -> Any:
    """Do what seals first."""
    calls = sorted(self._calls, key=lambda call: not isinstance(call.step, Seal))
    self._calls.clear()
    self._calls.extend(calls)
    return _next(self)


_next = unsealed.Line._next


@bug("a run that gets no answer is given up, and the line goes on", (unsealed.Line, "drive"))
async def failed_run_skipped(self: Any, call: Any = None) -> None:
    """Forget what could not be done."""
    try:
        await _drive(self, call)
    except (StoreError, Unavailable):
        self._run = None
        raise


_drive = unsealed.Line.drive


@bug("a call counts as done when it is sent, not when it is durable", (stream._Commit, "_stage"))
async def settled_when_sent(self: Any) -> None:
    """Tell the callers before the commit."""
    await _stage(self)
    for call in self.calls:
        if isinstance(call.step, tuple) and call.refusal is None:
            call.settle()


_stage = stream._Commit._stage


@bug("a write that is refused and not awaited is lost without a word", (unsealed.Line, "finish"))
async def stopped_in_silence(self: Any) -> None:
    """Do what is in line, and look at no refusal."""
    await self.drive()


# ---- the transition --------------------------------------------------------------------------------------------------


@bug("a pour does not look whether it is done already", (stream, "pour"))
def pour_without_witness(state: ShardState, request: Pour) -> tuple[ShardState, Outcome]:
    """Forget whose pours are in the shard."""
    after, answer = unsealed.pour(replace(state, writers={}), request)
    return (after if isinstance(answer, Poured) else state), answer


@bug("a write below the upper is let in", (stream, "pour"))
def sealed_times_written(state: ShardState, request: Pour) -> tuple[ShardState, Outcome]:
    """Move it to where it fits, its updates keep their times."""
    steps = tuple(
        replace(step, staged=replace(step.staged, lower=state.upper, upper=Frontier(max(_at(state), _upper(step)) + 1)))
        if isinstance(step, Write) and step.staged.lower < state.upper
        else step
        for step in request.steps
    )
    return unsealed.pour(state, replace(request, steps=steps))


def _at(state: ShardState) -> int:
    return state.upper.at or 0


def _upper(step: Write) -> int:
    return step.staged.upper.at or 0


@bug("what straddles a seal is sealed with it", (unsealed, "_cut"))
def straddlers_lost(batches: Any, pieces: Any) -> Any:
    """Keep only the first piece of what was cut."""
    found = {}
    for name, staged in batches.items():
        for piece in pieces[name][:1] if name in pieces else ():
            found[piece.name] = piece.staged
        if name not in pieces:
            found[name] = staged
    return found


@bug("the parts of a refused write are left, and those of a good one deleted", (stream._Commit, "_refuse"))
async def wrong_parts_discarded(self: Any, index: int, upper: Frontier) -> None:
    """Discard everything that was staged for the run."""
    self.calls[index].settle(InvalidUsage("refused"))
    for staged in self.mine.values():
        await self.codec.discard(write.staged for write in staged)


# ---- names and several collections -----------------------------------------------------------------------------------


@bug("the loser of a race for a name keeps the shard that it made up", (Names, "create_or_load"))
async def name_race_lost(self: Names, name: str, *, codec: str, schema: str) -> Named:
    """Do not look what the register says."""
    known = (await self._read()).names.get(name)
    if known is not None:
        return known
    mine = Named(self._ids.fresh("s"), codec, schema)
    await self._change(name, None, mine)
    return mine


@bug("a write over several collections draws a new token when it is asked for again", (Transactions, "find"))
async def multi_token_forgotten(self: Transactions, token: str) -> int | None:
    """Find nothing, here and when committing."""
    known = await _known(self, self._log.state)
    for used in list(known.tokens):
        known.tokens.pop(used)
    return None


_known = Transactions._known


@bug("each collection is committed by itself", (multi.MultiWriteHandle, "write"))
async def written_one_by_one(self: Any, changes: Any, *, at: int = 0, token: str | None = None) -> int:
    """Use a transaction for each."""
    time = 0
    for name, pairs in changes.items():
        time = await _write(self, {name: pairs}, at=at, token=f"{token}.{name}")
    return time


_write = multi.MultiWriteHandle.write
