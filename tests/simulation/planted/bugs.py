"""Bugs that are planted to prove that the simulation sees them.  None of them is in the package.

Each replaces a function of persist, or of a caller, by a wrong one while a context is entered: each is a mistake that
was once made, wrong as quietly as it can be.

Trap: these know persist's private names on purpose; when one of them goes, the bug must be planted anew, not dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from strandline.errors import Indeterminate, StoreError, Unavailable
from strandline.frontier import Frontier, join
from strandline.persist import client
from strandline.persist.client import PersistClient
from strandline.persist.handles import read, register, write
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.register import Register
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard import codec, state
from strandline.persist.shard.batch import Staged
from strandline.persist.shard.machine import Machine
from strandline.persist.shard.state import Append, Appended, AppendOutcome, Rollup, ShardState, add_rollup
from strandline.persist.together.transactions import Ledger, Transactions
from worlds import users
from worlds.rows import discard


@dataclass(frozen=True, slots=True)
class Bug:
    """A wrong replacement for ``name`` of each of ``places``; ``mistake`` in a sentence."""

    name: str
    mistake: str
    places: tuple[tuple[Any, str], ...]
    wrong: Any

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Let the bug live while the context is entered."""
        with ExitStack() as stack:
            for owner, name in self.places:
                stack.enter_context(mock.patch.object(owner, name, self.wrong))
            yield


def registrar(bugs: list[Bug]) -> Callable[..., Callable[[Any], Any]]:
    """Return what registers a wrong function for some places among ``bugs``, under its own name."""

    def bug(mistake: str, *places: tuple[Any, str]) -> Callable[[Any], Any]:
        def register_bug(wrong: Any) -> Any:
            bugs.append(Bug(wrong.__name__, mistake, places, wrong))
            return wrong

        return register_bug

    return bug


BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


APPEND: Final = ((write, "append"), (client, "append"))


# ---- appending -------------------------------------------------------------------------------------------------------


@bug("an append goes to wherever the upper is, not where it was expected", *APPEND)
def append_without_upper_check(before: ShardState, request: Append) -> tuple[ShardState, AppendOutcome]:
    """Move the request's bounds to the upper; its updates keep their times."""
    now, new = before.upper.at, request.new.at
    if before.upper == request.expected or now is None or new is None:
        return state.append(before, request)
    moved = Frontier(max(new, now + 1))
    staged = tuple(replace(s, lower=before.upper, upper=moved) for s in request.staged)
    return state.append(before, replace(request, expected=before.upper, new=moved, staged=staged))


@bug("after an unknown outcome the writer does not look for the token: what landed is reported as refused", *APPEND)
def witness_lost(before: ShardState, request: Append) -> tuple[ShardState, AppendOutcome]:
    """Forget whose appends are in the shard."""
    after, answer = state.append(replace(before, writers={}), request)
    return (after if isinstance(answer, Appended) else before), answer


@bug("the epoch is stored and never compared", *APPEND)
def fence_skipped(before: ShardState, request: Append) -> tuple[ShardState, AppendOutcome]:
    """Let any writer in."""
    return state.append(before, replace(request, epoch=max(request.epoch, before.epoch)))


@bug("only the first of several staged batches is appended", *APPEND)
def batch_dropped(before: ShardState, request: Append) -> tuple[ShardState, AppendOutcome]:
    """Lose a worker's part."""
    return state.append(before, replace(request, staged=request.staged[:1]))


@bug("a commit whose answer was lost counts as done", (Machine, "commit"))
async def unknown_taken_for_success(self: Machine, command: Any, **_: Any) -> Any:
    """Answer what the command said, whether it happened or not."""
    try:
        return await _commit(self, command)
    except Indeterminate:
        return command(self.state)[1]


@bug("a commit whose answer was lost counts as not done", (Machine, "commit"))
async def unknown_taken_for_failure(self: Machine, command: Any, **_: Any) -> Any:
    """Tell the caller that nothing happened."""
    try:
        return await _commit(self, command)
    except Indeterminate as error:
        raise Unavailable(str(error)) from error


_commit = Machine.commit


@bug("staged parts of an append whose fate is unknown are deleted", (users, "leave_alone"))
async def parts_deleted_after_unknown(process: PersistClient, staged: Sequence[Staged]) -> None:
    """Clean up too early."""
    try:
        await discard(process.blob, staged)
    except StoreError:
        return


# ---- states at rest --------------------------------------------------------------------------------------------------


async def _maintain_with(machine: Machine, encoded: Callable[[ShardState, str], bytes], *, named_first: bool) -> None:
    now = machine.state
    if now.seqno - now.rollups[-1].seqno < machine._rollup_every:
        return
    key = machine._rollup_key(now.seqno)
    try:
        if not named_first:
            await machine._blob.set(key, encoded(now, key))
        await machine.commit(lambda s: add_rollup(s, Rollup(now.seqno, key)))
        if named_first:
            await machine._blob.set(key, encoded(now, key))
    except (StoreError, Unavailable):
        return


@bug("a rollup is named before it is written", (Machine, "maintain"))
async def rollup_named_before_written(self: Machine) -> None:
    """Leave a moment in which the newest rollup is missing."""
    await _maintain_with(self, lambda now, key: codec.encode_rollup(key, now), named_first=True)


@bug("a rollup holds an older state under the newer seqno", (Machine, "maintain"))
async def rollup_of_stale_state(self: Machine) -> None:
    """Write the state without its newest batch."""

    def stale(now: ShardState, key: str) -> bytes:
        if len(now.batches) < 2:
            return codec.encode_rollup(key, now)
        last = now.batches[-1]
        kept = replace(now, batches=now.batches[:-1], upper=last.lower, digest=now.digest - last.digest)
        return codec.encode_rollup(key, kept)

    await _maintain_with(self, stale, named_first=False)


@bug("a rollup is deleted when naming it had an unknown outcome", (Machine, "maintain"))
async def rollup_deleted_after_unknown(self: Machine) -> None:
    """Clean up too early."""
    now = self.state
    if now.seqno - now.rollups[-1].seqno < self._rollup_every:
        return
    key = self._rollup_key(now.seqno)
    try:
        await self._blob.set(key, codec.encode_rollup(key, now))
        try:
            await self.commit(lambda s: add_rollup(s, Rollup(now.seqno, key)))
        except (StoreError, Unavailable):
            await self._blob.delete(key)
    except StoreError:
        return


# ---- reading ---------------------------------------------------------------------------------------------------------


@bug("a reader takes as_of == upper for complete", (ReadHandle, "wait_beyond"))
async def upper_off_by_one(self: ReadHandle, time: int, *, timeout_s: float | None = None) -> ShardState:
    """Do not wait for the last time."""
    return await _wait_beyond(self, max(0, time - 1), timeout_s=timeout_s)


_wait_beyond = ReadHandle.wait_beyond


@bug("a batch that begins before the listen's frontier is emitted whole", (read, "contents"))
def listen_repeats(*arguments: Any, **options: Any) -> Any:
    """Read one time too early."""
    now, schema, lower, *rest = arguments
    return _contents(now, schema, max(0, lower - 1), *rest, **options)


_contents = read.contents


@bug("since follows the hold that is furthest", (state, "_with_criticals"))
def since_past_a_hold(before: ShardState, criticals: Any) -> ShardState:
    """Join where a meet is due."""
    furthest = join(c.since for c in criticals.values())
    return replace(before, criticals=criticals, since=join((before.since, furthest)))


@bug("a hold is moved without looking whose it is", (read, "compare_and_downgrade"))
def hold_taken_unseen(before: ShardState, reader: str, expected: int, opaque: int, frontier: Frontier) -> Any:
    """Skip the comparison of tokens, and put the hold wherever it is asked to be."""
    held = before.criticals.get(reader)
    expected = held.opaque if held is not None else expected
    moved = replace(held, since=frontier, opaque=opaque) if held is not None else None
    if moved is None or moved == held:
        return state.compare_and_downgrade(before, reader, expected, opaque, frontier)
    after = state._with_criticals(before, {**before.criticals, reader: moved})
    return after, state.Downgraded(frontier)


# ---- transactions ----------------------------------------------------------------------------------------------------


@bug("the applier advances the registered shards before it appends", (Transactions, "apply"))
async def uppers_before_batches(self: Transactions) -> int:
    """Let readers past t while t's batches are not in."""
    await self._client.advance_many(
        [
            (w, self._log.state.upper, "")
            for w in self._writers.values()
            if w.state.upper < self._log.state.upper and w.state.upper.at != 0
        ]
    )
    return await _apply_all(self)


_apply_all = Transactions.apply


@bug("a transaction is committed again without looking for its token", (Transactions, "_known"))
async def token_not_looked_for(self: Transactions, now: ShardState) -> Ledger:
    """Find nothing."""
    return replace(await _known(self, now), tokens={})


_known = Transactions._known


@bug(
    "what is applied is forgotten by the crash: only the first shard of a transaction gets its batch",
    (Transactions, "_apply"),
)
async def half_applied(self: Transactions, writer: WriteHandle, time: int, staged: Sequence[Staged]) -> None:
    """Skip the last table now and then."""
    await _apply_one(self, writer, time, staged if writer.shard != "t2" or time % 3 else ())


_apply_one = Transactions._apply


# ---- registers -------------------------------------------------------------------------------------------------------


@bug("a register whose answer was lost is changed again", (Register, "_is_ours"))
async def register_without_witness(self: Register, seqno: int, token: str) -> bool:
    """Do not look."""
    return False


@bug("a register's change is applied to what was read before the race was lost", (Register, "_install"))
async def register_overwrites(self: Register, request: Any, token: str) -> bool:
    """Put our version behind whatever came."""
    while not await _install(self, request, token):
        head = await self._consensus.head(self.key)
        version = register.version_key(self.key, head.seqno + 1)
        body = register.unseal(
            register.Kind.REGISTER, register.version_key(self.key, request.new.seqno), request.new.data
        )
        sealed = register.seal(register.Kind.REGISTER, version, body)
        new = replace(request.new, seqno=head.seqno + 1, data=sealed)
        request = replace(request, expected=head.seqno, new=new)
    return True


_install = Register._install
