"""The sink of one shard: keeps it equal to what its dataflow desires, even if other processes write there.

`Sink.advance` is given the desired updates of one step.  It mints a description, writes ``desired − persist`` as a
staged batch, and appends it.  If another writer has appended meanwhile, the sink discards the batch, owes the negation
of what that writer appended, and mints from the shard's real upper.

Nothing is taken from the output shard on trust.  Every append records a *certificate*: the dataflow's fingerprint, how
far it had read its inputs, the digest of the shard. On opening, a certificate that still describes the shard means that
its content is what this dataflow desired of its inputs up to there, and the sink goes on from there without
recomputing. Otherwise it asks for an *audit*: one full recomputation, diffed against what is stored.

What is read of an input is definite, so it stays what it was.  Only a move (`tick.py`) takes a shard further than its
inputs are known; so its certificate, and this sink until the inputs have moved too, say that they were read to where
the move began.

A sink forgets first: before an append it gives up what it believes of the shard, and believes it again once it knows
the outcome.  So an append that fails, or is cancelled, leaves a sink that is not ``known``; the next step opens it
again, which looks at the shard, and goes on from what it finds there.

Law K2: for every t < upper, content at t = desired at t, but for what others wrote and the next append withdraws (K3).
Trap: a sink that is not ``known`` must be opened before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from strandline.algebra.schema import Schema
from strandline.compute.sink.correction import Correction, Updates
from strandline.compute.sink.mint import Description, mint
from strandline.frontier.antichain import MINIMUM, Frontier, as_time, meet
from strandline.persist.handles.contents import Contents, Half, Rows, StageRequest
from strandline.persist.handles.read import contents, erring
from strandline.persist.handles.write import WriteHandle, fenced
from strandline.persist.shard.batch import Staged
from strandline.persist.shard.state import Appended, Fenced, ShardState, UpperMismatch
from strandline.plane.engine import Engine
from strandline.plane.reading import Errors


@dataclass
class Counters:
    """What a sink has done since it was opened; shown by ``strandline status``."""

    appends: int = 0
    conflicts: int = 0
    audits: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Writing:
    """What a sink is about to append: ``rows`` (None: none), staged as ``request`` says, for ``description``.

    ``read``: how far the inputs were read for it.
    """

    description: Description
    read: Frontier
    rows: Rows | None
    request: StageRequest


class Sink:
    """The one writer of a view's shard (or of an internal stage's) in this process."""

    def __init__(self, engine: Engine, writer: WriteHandle, schema: Schema, fingerprint: str) -> None:
        self._engine = engine
        self.writer = writer
        self.schema = schema
        self.fingerprint = fingerprint
        self._correction = Correction(engine, schema)
        self._last_lower: int | None = None
        self._accounted = MINIMUM  # everything in the shard before this is ours, or withdrawn in the correction
        self.counters = Counters()
        self.may_write = True
        """Whether it may append yet; until then it owes what its dataflow desires, and its shard stays as it is."""
        self.known = False
        """Whether the outcome of the last append is known here; if not, `open` comes before anything else."""
        self.desired: int | None = None
        """What the inputs hold before this time has been computed; None: nothing is known, an audit is due."""
        self._doubted = False  # whatever a certificate says

    @property
    def fresh(self) -> bool:
        """Whether the shard has no history yet."""
        return self.writer.state.upper == MINIMUM

    @property
    def seen(self) -> bool:
        """Whether all that is known to be in the shard is accounted for: `look` would find nothing."""
        return self.writer.state.upper == self._accounted

    @property
    def owes(self) -> bool:
        """Whether an append is due even if nothing changes upstream."""
        return not self._correction.empty

    async def open(self) -> None:
        """Look at the shard, and trust it iff its certificate still describes it.

        After it, ``desired`` is None iff an audit is due.
        """
        self.known = False
        state = await self.writer.refresh()
        self._correction.clear()
        self._last_lower = None
        self._accounted = state.upper
        self.desired = None if self._doubted else _certified(state, self.fingerprint)
        self.known = True

    def audit(self) -> None:
        """Forget what is believed of the shard, whatever its certificate says, until an audit has come to its end."""
        self.desired, self._doubted = None, True

    @property
    def doubted(self) -> bool:
        """Whether an audit is due whatever a certificate says."""
        return self._doubted

    async def adopt(self, seed: ShardState) -> None:
        """Go on from ``seed``, a shard that holds what this dataflow desires of its inputs up to some time, if it does.

        Its rows are owed, and the negation of the rows that are stored here.
        """
        read = _certified(seed, self.fingerprint)
        if read is not None and read > 0:
            await self._owe(await self._stored(seed, 0, as_time(seed.upper), advance=read - 1))
            self.desired = read

    def audit_if_passed(self, desired: Frontier) -> None:
        """Ask for an audit if the shard is ahead of what is ``desired``, so that a step would owe and not append.

        A step that fails forgets what it owes.  Going back to where it was known, it would owe and fail for ever.
        """
        if self.desired is not None and desired < self.writer.state.upper:
            self.desired = None

    async def start(self, as_of: int, since: int | None = None) -> None:
        """Begin the history of a fresh shard at ``as_of``: the first step's window starts there.

        ``since``: it cannot be read before this time (None: ``as_of``).

        It may turn out to be not `fresh`: an append of unknown outcome has happened after all, here or in an earlier
        incarnation.  Then what is there is looked at, as `open` does, and ``as_of`` says nothing.
        """
        assert self.fresh, f"shard {self.writer.shard!r} has a history"
        await self.writer.open_at(as_of if since is None else since)
        if not self.fresh:
            await self.open()
            return
        self._accounted = MINIMUM
        self.desired = as_of

    async def replace(self, desired: Updates) -> None:
        """Owe the difference between full desired contents, both halves of them, and all that is stored.

        If it raises, the sink owes what it owed.
        """
        await self._owe(desired)
        self.counters.audits += self.desired is None and not self.fresh

    async def _owe(self, desired: Updates) -> None:
        state = await self.writer.refresh()
        stored = Updates() if self.fresh else await self._stored(state, 0, as_time(state.upper))
        self._correction.clear()
        self._correction.add(desired)
        self._correction.withdraw(stored)
        self._accounted = state.upper

    async def look(self) -> None:
        """Owe the negation of what others appended since this sink last did, as far as it is known here."""
        state = self.writer.state
        if self.seen:
            return
        lower, upper = as_time(self._accounted), as_time(state.upper)
        self.counters.conflicts += 1
        if contents(state, self.schema, lower, upper, advance=lower).rows:
            self._correction.withdraw(await self._stored(state, lower, upper))
        self._accounted = state.upper

    def held(self, advance: int) -> Contents | None:
        """Return the ok half of the shard, all of it at ``advance``, if that is what rules call *prior*."""
        if self.owes or not self.seen:
            return None
        return contents(self.writer.state, self.schema, 0, as_time(self._accounted), advance=advance)

    async def prior(self, *, here: bool) -> Rows:
        """Return what rules call *prior*: the ok half before this step as desired, which is stored + owed.

        ``here``: brought into this process, if it is small.
        """
        await self.look()
        stored = await self._stored(self.writer.state, 0, as_time(self._accounted), here=here)
        lower = self.desired or 0
        owed = [await self._correction.ok(lower)] if self.owes else []
        frames = [*stored.ok, *owed]
        return await self._engine.union(self.schema, frames, advance=0, negate=[False] * len(frames))

    async def own_errors(self, name: str) -> Errors:
        """Return the errors, stored or owed, that name the collection ``name``: those that are no input's."""
        await self.look()
        state, (frames, negate) = self.writer.state, self._correction.err()
        if any(batch.errors for batch in state.batches):
            held = contents(state, self.schema, 0, as_time(self._accounted), advance=0, half=Half.ERR)
            frames, negate = (*frames, await self._engine.read(erring(held))), (*negate, False)
        if not frames:
            return Errors(0)
        both = await self._engine.union(Schema(()), frames, advance=0, negate=negate)
        return await self._engine.errors(both, of=name)

    async def advance(self, delta: Updates, upper: Frontier, *, read: Frontier | None = None, small: bool) -> None:
        """Append the desired updates before ``upper``, and whatever is owed besides.

        ``read``: how far the inputs were read for them (None: to ``upper``).  ``small`` is a hint that they are few.
        Returns when they are durable, or when the shard is ahead of ``upper`` (then they are owed).

        Raises:
            FencedError: a newer epoch has taken over.
            Exception: whatever a store or the engine raises; the append may have happened, and the sink is not `known`.
        """
        await self._write(await self.draft(delta, upper, read=read, small=small))

    async def draft(
        self, delta: Updates, upper: Frontier, *, read: Frontier | None = None, small: bool
    ) -> Writing | None:
        """Do `advance` up to where rows are to be staged; None: it is done.  It raises what that raises."""
        self.forget()
        self._correction.add(delta)
        read = upper if read is None else read
        self.desired = as_time(read)
        await self.look()
        return await self._next(upper, read, small=small)

    async def finish(self, writing: Writing, staged: Staged | None) -> bool:
        """Do the rest of `advance`, after a `draft`: ``staged`` is what its rows were staged as.  Raises as that.

        Return whether just this was appended; else another writer was there first.
        """
        conflicts = self.counters.conflicts
        await self._write(await self._append(writing, staged))
        return self.counters.conflicts == conflicts

    async def _write(self, writing: Writing | None) -> None:
        while writing is not None:
            staged = None if writing.rows is None else await self._engine.stage(writing.rows, writing.request)
            writing = await self._append(writing, staged)

    async def _append(self, writing: Writing, staged: Staged | None) -> Writing | None:
        """Append what was staged of ``writing``; return what is to be staged next, None: it is done."""
        description = writing.description
        kept = staged if staged is not None and staged.parts else None
        outcome = await self.writer.compare_and_append(
            [kept] if kept else [],
            Frontier(description.lower),
            description.upper,
            certify=self.fingerprint,
            read=writing.read,
        )
        match outcome:
            case Appended():
                self._correction.clear()
                self._accounted = description.upper
                self.counters.appends += 1
                self.counters.rows += kept.rows if kept else 0
            case UpperMismatch():
                await self._give_up(kept)
                await self.look()
            case Fenced():  # the parts are left alone: a fenced writer may not know all that it has appended
                raise fenced(self.writer.shard, outcome, self.writer.epoch)
        return await self._next(description.upper, writing.read, small=writing.request.small)

    def forget(self) -> None:
        """Give up what is believed of the shard: an append begins whose outcome may stay unknown, or a step failed."""
        self.known = False

    def moved(self, outcome: Appended | UpperMismatch, upper: Frontier, *, read: Frontier) -> None:
        """Take note of an empty append that was made for this sink together with others'; its inputs are `read`."""
        self.known = True
        match outcome:
            case Appended():
                self.desired = as_time(read)
                self._accounted = upper
                self.counters.appends += 1
            case UpperMismatch():
                pass  # another writer has appended: the next step finds the upper moved, and looks

    async def _next(self, upper: Frontier, read: Frontier, *, small: bool) -> Writing | None:
        """Mint the next description, and return what it is for; None: there is no more to append."""
        description = mint(allowed=self.may_write, desired=upper, shard=self._accounted, last_lower=self._last_lower)
        if description is None:
            self.known, self._doubted = True, False
            return None
        self._last_lower = description.lower
        request = StageRequest(
            shard=self.writer.shard,
            schema=self.schema,
            lower=description.lower,
            upper=as_time(description.upper),
            prefix=self.writer.stage_prefix(),
            sort=self.writer.state.sort,
            small=small,
            inline_bytes_max=self.writer.inline_room,
        )
        rows = None if self._correction.empty else await self._correction.rows(description.lower)
        return Writing(description, read, rows, request)

    async def _give_up(self, staged: Staged | None) -> None:
        if staged is not None:
            await self._engine.discard(staged)

    async def _stored(
        self, state: ShardState, lower: int, upper: int, *, advance: int | None = None, here: bool = False
    ) -> Updates:
        held = replace(contents(state, self.schema, lower, upper, advance=advance or lower), here=here)
        failed = erring(replace(held, half=Half.ERR))
        err = (await self._engine.read(failed),) if failed.rows else ()
        return Updates((await self._engine.read(held),), err)


def reached(state: ShardState) -> Frontier:
    """Return from where a stage goes on that opens its shard as it is now, if it trusts it; empty: it is done."""
    if state.upper.empty:
        return state.upper
    return state.upper if state.certificate is None else meet((state.upper, state.certificate.upper))


def _certified(state: ShardState, fingerprint: str) -> int | None:
    """Return how far the inputs were read for what the shard holds; None if nothing vouches for it."""
    certificate = state.certificate
    if certificate is None or state.upper.at is None:
        return None
    describes = (certificate.fingerprint, certificate.digest) == (fingerprint, state.digest)
    return certificate.upper.at if describes else None
