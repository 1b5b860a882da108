"""The sink of one shard: keeps it equal to what its dataflow desires, even if other processes write there.

`Sink.advance` is given the desired updates of one step.  It mints a description (`Mint`), writes ``desired − persist``
as a staged batch, and appends it.  If another writer has appended meanwhile, the sink discards the batch, owes the
negation of what that writer appended, and mints from the shard's real upper.

The sink trusts nothing that it finds in the shard.  Every append records a *certificate*: the dataflow's fingerprint,
how far it had read its inputs, and the digest of the shard.  If a certificate still describes the shard on opening,
its content is what this dataflow desired of its inputs up to there, and the sink continues from there without
recomputing.  Otherwise it asks for an *audit*: one full recomputation, diffed against what is stored.

Law K2: for every t < upper, content at t = desired at t, but for what others wrote and the next append withdraws (K3).
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from strandline.algebra.schema import Schema
from strandline.compute.sink.correction import Correction, Disagreement, Updates, inexact, writer_since
from strandline.frontier import MINIMUM, Frontier, as_time, meet
from strandline.persist.handles.contents import Contents, Half, Rows, StageRequest
from strandline.persist.handles.read import contents, erring
from strandline.persist.handles.write import WriteHandle, fenced
from strandline.persist.shard.batch import NOTHING, Digest, Staged
from strandline.persist.shard.state import Appended, Fenced, ShardState, UpperMismatch
from strandline.plane import SIGNIFICANT_DIGITS, Engine, Errors


@dataclass(frozen=True, slots=True)
class Description:
    """The batch to append: it begins at the shard's upper and reaches to where desired is known.

    It is minted from the frontier of *desired* (how far the dataflow has computed) and the upper of the shard itself.
    """

    lower: int
    upper: Frontier

    def __post_init__(self) -> None:
        assert not self.upper <= Frontier(self.lower), f"empty description [{self.lower}, {self.upper})"


def mint(*, allowed: bool, desired: Frontier, shard: Frontier, last_lower: int | None) -> Description | None:
    """Return the next description, or None if there is nothing to append.

    An empty desired frontier (the dataflow is done) mints a description with the empty upper, which seals the shard.
    A shard whose upper is empty is done and mints nothing.  A shard that is ahead of desired mints nothing until
    desired has passed it.

    >>> mint(allowed=True, desired=Frontier(5), shard=Frontier(3), last_lower=None)
    Description(lower=3, upper=Frontier(at=5))
    >>> mint(allowed=True, desired=Frontier(5), shard=Frontier(3), last_lower=3) is None  # that one was minted already
    True
    >>> mint(allowed=True, desired=Frontier(5), shard=Frontier(7), last_lower=3) is None  # the shard is ahead
    True
    >>> mint(allowed=True, desired=Frontier(None), shard=Frontier(7), last_lower=3).upper.empty  # done: seal
    True
    >>> mint(allowed=True, desired=Frontier(None), shard=Frontier(None), last_lower=3) is None
    True
    >>> mint(allowed=False, desired=Frontier(5), shard=Frontier(3), last_lower=None) is None  # read-only
    True
    """
    if not allowed or shard.at is None or desired <= shard:
        return None
    if last_lower is not None and shard.at <= last_lower:
        return None
    return Description(shard.at, desired)


@dataclass
class Mint:
    """What one sink has minted for its shard: the last description, and what became of it.

    `mint` is the definition; this remembers what was minted, also while the sink is opened again.  Its law, K1, is
    asserted at each description:

    1. Lowers strictly increase.  The last lower is minted again only if its description was given up and the shard has
       not moved since: an append whose outcome stayed unknown has then not happened.  If it happens later after all,
       the shard's own compare-and-set admits only one of the two.
    2. Uppers never decrease.  Where desired itself begins anew, at a certificate or an audit, they begin anew with it.
    3. One description is valid at a time: the next is minted only once the last was appended, lost, or given up.  So
       no sink keeps state for an older one.

    >>> mint = Mint()
    >>> mint.next(allowed=True, desired=Frontier(5), shard=Frontier(3))
    Description(lower=3, upper=Frontier(at=5))
    >>> mint.give_up()  # the append failed, and the shard was opened again: it has not moved
    >>> mint.next(allowed=True, desired=Frontier(4), shard=Frontier(3))
    Description(lower=3, upper=Frontier(at=4))
    >>> mint.settle(Frontier(4))
    >>> mint.next(allowed=True, desired=Frontier(4), shard=Frontier(4)) is None
    True
    """

    last: Description | None = None
    valid: bool = False
    """Whether the last description may still be appended."""
    given_up: bool = False
    """Whether the last description was given up, so that its lower may be minted again."""
    desired: Frontier = MINIMUM
    """The last desired frontier since desired began anew: no later upper is before it."""

    def next(self, *, allowed: bool, desired: Frontier, shard: Frontier) -> Description | None:
        """Return what `mint` says, and remember it.  Raises `AssertionError` if law K1 would be broken."""
        last = self.last
        assert not self.valid, f"law K1 (one description is valid at a time) is broken: {last} is"
        assert last is None or Frontier(last.lower) <= shard, (
            f"law K1 (lowers strictly increase) is broken: {last} was minted, and the shard is at {shard}"
        )
        assert self.desired <= desired, (
            f"law K1 (uppers never decrease) is broken: {desired} is desired after {self.desired}"
        )
        self.desired = desired
        last_lower = None if last is None or self.given_up else last.lower
        found = mint(allowed=allowed, desired=desired, shard=shard, last_lower=last_lower)
        if found is not None:
            self.last, self.valid, self.given_up = found, True, False
        return found

    def settle(self, shard: Frontier) -> None:
        """Note that the last description was appended, or lost to another writer: ``shard`` is the upper now."""
        assert self.valid, f"law K1 (one description is valid at a time) is broken: {self.last} is settled twice"
        assert self.last is not None
        assert not shard <= Frontier(self.last.lower), (
            f"law K1 (lowers strictly increase) is broken: {self.last} is settled, and the shard is at {shard}"
        )
        self.valid = False

    def give_up(self) -> None:
        """Note that the shard was opened again: a description that is still valid is given up, and desired begins anew.

        Its append has not happened if the shard is where it was, and its lower may be minted again.
        """
        self.given_up |= self.valid
        self.valid = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Note that desired begins anew, perhaps at an earlier time than it had come to."""
        self.desired = MINIMUM


@dataclass
class Counters:
    """What a sink has done since it was opened; shown by ``strandline status``.

    ``conflicts``: appends of other writers that were withdrawn.  ``equal``: those after which nothing had to be, since
    the shard held what this dataflow desires, or since they changed nothing.
    """

    appends: int = 0
    conflicts: int = 0
    audits: int = 0
    rows: int = 0
    equal: int = 0


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
    """The one writer of a view's shard (or of an internal stage's) in this process.

    *Another writer* may be the sink of a replica, which runs the same dataflow.  Then its certificate describes the
    shard, and the loser compares before it reads anything:

    - Equal digests over the same inputs: both have appended the same fact, and nothing is owed.
    - Other inputs: the shard holds what this dataflow desired of those, and the sink continues from there.
    - Different digests over the same inputs: one of the two is wrong, or began with rows that were.  That is a
      conflict, noted in ``disagreed``, and the sink asks for an audit.  Until the outcome of the audit is appended it
      believes no certificate of the shard.

    *Moves.* What was read of an input is definite and never changes.  Only a move (`tick.py`) takes a shard further
    than its inputs are known.  So its certificate, and this sink until the inputs have moved too, say that they were
    read to where the move began.

    *Failures.* Before an append the sink gives up what it knows of the shard, and restores it once it knows the
    outcome.  So an append that fails, or is cancelled, leaves a sink that is not ``known``; the next step opens it
    again, which reads the shard and continues from what it finds there.  Trap: a sink that is not ``known`` must be
    opened before it is used.
    """

    def __init__(self, engine: Engine, writer: WriteHandle, schema: Schema, fingerprint: str) -> None:
        self._engine = engine
        self.writer = writer
        self.schema = schema
        self.fingerprint = fingerprint
        self._correction = Correction(engine, schema)
        self._mint = Mint()
        self._accounted = MINIMUM  # everything in the shard before this is ours, or withdrawn in the correction
        self._digest = NOTHING  # of the shard's contents before that
        self._certified = False  # whether a certificate of this dataflow vouched for these
        self._overtaken = False  # ``desired`` is no longer where the step under way began
        self.counters = Counters()
        self.may_write = True
        """Whether it may append yet; until then it owes what its dataflow desires, and its shard stays as it is."""
        self.known = False
        """Whether the outcome of the last append is known here; if not, `open` comes before anything else."""
        self.desired: int | None = None
        """What the inputs hold before this time has been computed; None: nothing is known, an audit is due."""
        self.disagreed: Disagreement | None = None
        """The last race in which a replica's contents were others than this sink's; None: there was none.

        Contents that differ in their errors alone, or in the last digits of floats, are no disagreement.
        """
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
        self._mint.give_up()
        self._account(state)
        self._resume(None if self._doubted else _certified(state, self.fingerprint))
        self.known, self._overtaken = True, False

    def audit(self) -> None:
        """Forget what is believed of the shard, whatever its certificate says, until an audit has come to its end."""
        self._resume(None)
        self._doubted = self._overtaken = True

    @property
    def doubted(self) -> bool:
        """Whether an audit is due whatever a certificate says."""
        return self._doubted

    async def adopt(self, seed: ShardState, begins: int = 0) -> None:
        """Go on from ``seed``, a shard that holds what this dataflow desires of its inputs up to some time, if it does.

        Its rows are owed, and the negation of the rows that are stored here.  If the seed is ahead of this shard, its
        changes are owed at their own times, so that the shard is right at each of them.  No time before ``begins`` is
        ever read here.  If the seed's history begins later than what is missing here, nothing is adopted.
        """
        read, state = _certified(seed, self.fingerprint), await self.writer.refresh()
        if read is not None and read > 0:
            time = min(read - 1, max(as_time(state.upper), begins))
            if seed.since <= Frontier(time):
                prepared = await self._stored(seed, 0, as_time(seed.upper), advance=time)
                await self._owe(prepared, state, time)
                self._resume(read)

    def audit_if_passed(self, desired: Frontier) -> None:
        """Ask for an audit if the shard is ahead of what is ``desired``, so that a step would owe and not append.

        A step that fails forgets what it owes.  Going back to where it was known, it would owe and fail for ever.
        """
        if self.desired is not None and desired < self.writer.state.upper:
            self._resume(None)

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
        self._accounted, self._digest, self._certified, self._overtaken = MINIMUM, NOTHING, False, False
        self._resume(as_of)

    async def replace(self, desired: Updates, time: int) -> None:
        """Owe the difference between the desired contents at ``time``, both halves of them, and all that is stored.

        Unless a replica was faster: then the step under way is over.  If it raises, the sink owes what it owed.
        """
        state = await self.writer.refresh()
        if not self.seen:
            self._adopted(state)
        if not self._overtaken:
            await self._owe(desired, state, time)
            self.counters.audits += self.desired is None and not self.fresh

    async def _owe(self, desired: Updates, state: ShardState, time: int) -> None:
        """Owe ``desired`` in place of all stored rows; those stay until ``time``, if that is later."""
        stored = Updates() if self.fresh else await self._stored(state, 0, as_time(state.upper), advance=time)
        self._correction.clear()
        self._correction.add(desired)
        self._correction.withdraw(stored)
        self._account(state)

    async def look(self) -> None:
        """Begin a step: account for what others appended, as far as it is known here; ``desired`` may be another then.

        If an audit was due, it is not if a replica has certified the shard meanwhile.
        """
        if self.desired is None and not self.seen:
            await self.open()
        await self._look()
        self._overtaken = False

    async def _look(self, mine: Digest | None = None) -> None:
        """Adopt what others appended, or owe its negation; see `_adopted`.

        Before a view's first refresh its shard cannot be read where the sink stands: a merge may have made one time of
        the sink's own rows and another writer's.  Then the sink asks for an audit, as if it owed too much.
        """
        state = self.writer.state
        if self.seen or self._adopted(state, None if mine is None else (mine, self.desired)):
            return
        lower, upper = as_time(self._accounted), as_time(state.upper)
        self.counters.conflicts += 1
        told_apart = lower == 0 or state.since < self._accounted
        if told_apart and contents(state, self.schema, lower, upper, advance=lower).rows:
            self._correction.withdraw(await self._stored(state, lower, upper))
        self._account(state)
        if not told_apart or (self._correction.full and self.may_write):
            self._correction.clear()
            self._resume(None)
            self._overtaken = True

    def _adopted(self, state: ShardState, mine: tuple[Digest, int | None] | None = None) -> bool:
        """Go on from ``state``, to which others have appended, if nothing of it is to be withdrawn; return whether so.

        ``mine``: the digest that the shard would have, had this sink appended what it desires, and how far the inputs
        were read for that; None: nothing was to be appended.
        """
        read = _vouched(state, self.fingerprint)
        if read is None:
            return False
        at, before = as_time(read), self.desired
        if mine is not None and at == mine[1]:
            if mine[0] != state.digest:
                self.disagreed = Disagreement(
                    self._accounted,
                    state.upper,
                    state.digest,
                    mine[0],
                    afresh=not self._certified,
                    audited=self._doubted,
                    by=writer_since(state, self._accounted),
                )
                self._doubted = True
                return False
        elif self._doubted:
            return False
        self.counters.equal += 1
        if before is None or at >= before or state.digest != self._digest:  # else nothing was added to what is known
            self._correction.clear()
            self._overtaken |= at != before
            self._resume(at)
        self._account(state)
        return True

    def _account(self, state: ShardState) -> None:
        self._accounted, self._digest = state.upper, state.digest
        self._certified = _vouched(state, self.fingerprint) is not None

    def _resume(self, desired: int | None) -> None:
        """Let ``desired`` begin anew, perhaps at an earlier time than it had come to."""
        self.desired = desired
        self._mint.begin_anew()

    def held(self, advance: int) -> Contents | None:
        """Return the ok half of the shard, all of it at ``advance``, if that is what rules call *prior*."""
        if self.owes or not self.seen:
            return None
        return contents(self.writer.state, self.schema, 0, as_time(self._accounted), advance=advance)

    async def prior(self, *, here: bool) -> Rows:
        """Return what rules call *prior*: the ok half before this step as desired, which is stored + owed.

        ``here``: brought into this process, if it is small.
        """
        await self._look()
        stored = await self._stored(self.writer.state, 0, as_time(self._accounted), here=here)
        lower = self.desired or 0
        owed = [await self._correction.ok(lower)] if self.owes else []
        frames = [*stored.ok, *owed]
        return await self._engine.union(self.schema, frames, advance=0, negate=[False] * len(frames))

    async def own_errors(self, name: str) -> Errors:
        """Return the errors, stored or owed, that name the collection ``name``: those that are no input's."""
        await self._look()
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
        Returns when they are durable, or when the shard is ahead of ``upper`` (then they are owed), or when ``desired``
        is no longer where the step began (then they are given up, and a step from there on gives them again).

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
        read = upper if read is None else read
        if not self._overtaken:
            self._correction.add(delta)
            self.desired = as_time(read)
            await self._look()
        return await self._next(upper, read, small=small)

    async def finish(self, writing: Writing, staged: Staged | None) -> bool:
        """Do the rest of `advance`, after a `draft`: ``staged`` is what its rows were staged as.  Raises as that.

        Return whether just this was appended, by this sink or by a replica; else another writer was there first.
        """
        as_written, more = await self._append(writing, staged)
        await self._write(more)
        return as_written

    async def _write(self, writing: Writing | None) -> None:
        while writing is not None:
            staged = None if writing.rows is None else await self._engine.stage(writing.rows, writing.request)
            _, writing = await self._append(writing, staged)

    async def _append(self, writing: Writing, staged: Staged | None) -> tuple[bool, Writing | None]:
        """Append what was staged of ``writing``.

        Return whether just this is in the shard now, and what is to be staged next (None: it is done).
        """
        description = writing.description
        kept = staged if staged is not None and staged.parts else None
        mine = self._digest + (kept.digest if kept else NOTHING)
        outcome = await self.writer.compare_and_append(
            [kept] if kept else [],
            Frontier(description.lower),
            description.upper,
            certify=self.fingerprint,
            read=writing.read,
        )
        as_written = True
        match outcome:
            case Appended():
                self._mint.settle(description.upper)
                self._correction.clear()
                self._accounted, self._digest, self._certified = description.upper, mine, True
                self.counters.appends += 1
                self.counters.rows += kept.rows if kept else 0
            case UpperMismatch():
                self._mint.settle(outcome.actual)
                await self._give_up(kept)
                before = self.disagreed
                await self._look(mine)
                if self.disagreed is not before:
                    await self._compare(before)
                as_written = self._by_a_replica(writing, mine)
            case Fenced():  # the parts are left alone: a fenced writer may not know all that it has appended
                raise fenced(self.writer.shard, outcome, self.writer.epoch)
        return as_written, await self._next(description.upper, writing.read, small=writing.request.small)

    async def _compare(self, before: Disagreement | None) -> None:
        """Count the rows in which the replica disagreed, and ask for an audit: what this sink began with may be wrong.

        If it is only errors, or the last digits of floats, the disagreement is still the one ``before``.
        """
        found = self.disagreed
        if found is not None and self.owes:  # just the difference; else it is so much that an audit comes instead
            owed = await self._correction.ok(0)
            left = await self._engine.differences(owed, self.schema, significant=SIGNIFICANT_DIGITS)
            counted = replace(found, missing=left.missing, extra=left.extra, example=left.example)
            harmless = any(self._correction.err()) or inexact(self.schema)
            self.disagreed = before if harmless and not (left.missing or left.extra) else counted
        if self.disagreed is not before:
            self._correction.clear()
            self.audit()

    def _by_a_replica(self, writing: Writing, mine: Digest) -> bool:
        """Return whether a replica has appended just what is ``writing``, after which the digest would be ``mine``.

        If its batch was merged meanwhile, that cannot be seen: then False.
        """
        state, description = self.writer.state, writing.description
        newest = state.batches[-1]
        same = (newest.lower, newest.upper) == (Frontier(description.lower), description.upper)
        return same and state.digest == mine and _vouched(state, self.fingerprint) == writing.read

    def forget(self) -> None:
        """Give up what is believed of the shard: an append begins whose outcome may stay unknown, or a step failed."""
        self.known = False

    def move(self, upper: Frontier) -> None:
        """Mint the description of an empty append, which is made for this sink together with others'; then `moved`."""
        self.forget()
        minted = self._mint.next(allowed=self.may_write, desired=upper, shard=self._accounted)
        assert minted is not None, f"shard {self.writer.shard!r} cannot be moved from {self._accounted} to {upper}"

    def moved(self, outcome: Appended | UpperMismatch, upper: Frontier, *, read: Frontier) -> None:
        """Take note of what has become of a `move`; its inputs are `read`."""
        self.known = True
        match outcome:
            case Appended():
                self._mint.settle(upper)
                self._resume(as_time(read))
                self._accounted, self._certified = upper, True
                self.counters.appends += 1
            case UpperMismatch():
                self._mint.settle(outcome.actual)
                mine = self._digest, as_time(read)
                before = self.disagreed
                self._adopted(self.writer.state, mine)  # if that finds something to withdraw, the next step does
                if self.disagreed is not before:
                    self.audit()

    async def _next(self, upper: Frontier, read: Frontier, *, small: bool) -> Writing | None:
        """Mint the next description, and return what it is for; None: there is no more to append."""
        if self._overtaken:
            self.known = True
            return None
        description = self._mint.next(allowed=self.may_write, desired=upper, shard=self._accounted)
        if description is None:
            self.known = True
            self._doubted &= self.owes  # what an audit came to is still to be appended
            return None
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
    read = None if state.upper.empty else _vouched(state, fingerprint)
    return None if read is None else read.at


def _vouched(state: ShardState, fingerprint: str) -> Frontier | None:
    """Return how far the inputs were read by the certificate of the shard, closed or not; None if none describes it."""
    certificate = state.certificate
    if certificate is None or (certificate.fingerprint, certificate.digest) != (fingerprint, state.digest):
        return None
    return certificate.upper
