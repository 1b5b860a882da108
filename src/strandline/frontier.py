"""The orders that measure progress: times, frontiers, refreshes, source offsets. No storage, no Spark.

A time is a number of milliseconds, ``0 <= t < 2**63``; `moment` and `shown` translate it from and to text for people.
A `Frontier` says which times may still change.  `Offsets` say how far a source has been read.  `Refresh` says at which
times a view adopts what its inputs hold, and `Pace` what that means for a stage: how far it reads its inputs, and how
far its shard is known then.

Trap: the empty frontier is the *greatest* one.  A function that forgets it blocks a sealed collection for ever.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import index
from typing import Any, Final

import msgspec

from strandline.errors import InvalidUsage

TIME_MAX: Final = 2**63 - 1


class Frontier(msgspec.Struct, frozen=True):
    """The times that may still change: all ``t >= at``; ``at is None``: none.

    A frontier is an antichain of times; since time is totally ordered it has one element or none.  ``Frontier(at)``
    says that updates at ``t >= at`` may still come; the empty frontier says that none will.  Frontiers are ordered by
    progress: minimum <= ... <= empty.

    >>> Frontier(3).beyond(3), Frontier(3).beyond(2), EMPTY.beyond(9)
    (True, False, False)
    >>> Frontier(3) <= Frontier(4) <= EMPTY, EMPTY <= Frontier(4), EMPTY <= EMPTY
    (True, False, True)
    >>> str(Frontier(3)), str(EMPTY)
    ('[3]', '[]')
    """

    at: int | None

    def __post_init__(self) -> None:
        at = self.at
        if at is not None and not (at.__class__ is int and 0 <= at <= TIME_MAX):
            raise ValueError(f"time {at!r} is not an int within 0 <= t < 2**63")

    def beyond(self, time: int) -> bool:
        """Return whether ``time`` may still change."""
        return self.at is not None and time >= self.at

    @property
    def empty(self) -> bool:
        """Whether no time may change."""
        return self.at is None

    def __le__(self, other: Frontier) -> bool:
        return other.at is None or (self.at is not None and self.at <= other.at)

    def __lt__(self, other: Frontier) -> bool:
        return self.at is not None and (other.at is None or self.at < other.at)

    def advance(self, time: int) -> int:
        """Return ``time`` advanced by this frontier as a since: the later of the two.

        >>> Frontier(5).advance(3), Frontier(5).advance(8), EMPTY.advance(3) == TIME_MAX
        (5, 8, True)
        """
        return TIME_MAX if self.at is None else max(time, self.at)

    def __str__(self) -> str:
        return "[]" if self.at is None else f"[{self.at}]"


MINIMUM: Final = Frontier(0)
EMPTY: Final = Frontier(None)


def meet(frontiers: Iterable[Frontier]) -> Frontier:
    """Return the greatest frontier that is ``<=`` all of them; without any, the empty frontier.

    >>> str(meet([Frontier(4), EMPTY, Frontier(2)])), str(meet([]))
    ('[2]', '[]')
    """
    times = [f.at for f in frontiers if f.at is not None]
    return Frontier(min(times)) if times else EMPTY


def join(frontiers: Iterable[Frontier]) -> Frontier:
    """Return the least frontier that is ``>=`` all of them; without any, the minimum.

    >>> str(join([Frontier(4), Frontier(2)])), str(join([Frontier(4), EMPTY])), str(join([]))
    ('[4]', '[]', '[0]')
    """
    greatest = MINIMUM
    for frontier in frontiers:
        greatest = max(greatest, frontier)
    return greatest


def as_time(frontier: Frontier) -> int:
    """Return the frontier as an exclusive bound on times; the empty one is beyond all of them.

    >>> as_time(Frontier(3)), as_time(EMPTY) == TIME_MAX
    (3, True)
    """
    return TIME_MAX if frontier.at is None else frontier.at


def whole(number: object) -> int | None:
    """Return a whole number of any integer type (numpy has its own) as an int; None for anything else.

    >>> whole(5), whole(5.0), whole("5"), whole(True), whole(None)
    (5, None, None, None, None)
    """
    if isinstance(number, bool):
        return None
    try:
        # A value without `__index__` raises TypeError, which is the check.
        return int(index(number))  # type: ignore[arg-type]
    except TypeError:
        return None


def given_time(number: object, whose: str) -> int:
    """Check a time that a caller passed, and return it.  Raises `InvalidUsage` that names ``whose`` it is.

    A number that only looks like a time (5.0) would be stored and then be unreadable.

    >>> given_time(7, "a tick")
    7
    >>> given_time(7.0, "a tick")
    Traceback (most recent call last):
    strandline.errors.InvalidUsage: a tick: time 7.0 is not a whole number within 0 <= t < 2**63 - 1
    """
    time = whole(number)
    if time is None or not 0 <= time < TIME_MAX:
        raise InvalidUsage(f"{whose}: time {number!r} is not a whole number within 0 <= t < 2**63 - 1")
    return time


@dataclass(frozen=True, slots=True, init=False)
class Offsets:
    """Next offset by partition.

    ``Offsets({p: n})`` covers the messages of partition ``p`` with offset ``< n``; a partition that is absent is at 0.
    Offsets form a lattice (join = maximum by partition); two of them may be incomparable, and ``<=`` is then false
    both ways.  They are values: hashable, and equal iff they cover the same messages, with or without explicit zeros.
    `strandline/sources/reclock.py` assigns times to them.

    >>> Offsets({"0": 3}) <= Offsets({"0": 3, "1": 1}), Offsets({"0": 3}) <= Offsets({"1": 9})
    (True, False)
    >>> Offsets({"0": 0}) == Offsets(), Offsets({"0": 4}).covers("0", 3), Offsets({"0": 4}).covers("0", 4)
    (True, True, False)
    """

    entries: tuple[tuple[str, int], ...]

    def __init__(self, offsets: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> None:
        entries = tuple(sorted((p, n) for p, n in dict(offsets).items() if n))
        if any(n < 0 for _, n in entries):
            raise ValueError(f"negative offset in {entries}")
        object.__setattr__(self, "entries", entries)

    def __getitem__(self, partition: str) -> int:
        return dict(self.entries).get(partition, 0)

    def covers(self, partition: str, offset: int) -> bool:
        """Return whether the message at ``offset`` of ``partition`` is before this frontier."""
        return offset < self[partition]

    def __le__(self, other: Offsets) -> bool:
        there = dict(other.entries)
        return all(n <= there.get(p, 0) for p, n in self.entries)

    def join(self, other: Offsets) -> Offsets:
        """Return the least offsets that cover all messages that either one covers.

        >>> Offsets({"0": 3, "1": 1}).join(Offsets({"1": 2})).entries
        (('0', 3), ('1', 2))
        """
        merged = dict(self.entries)
        for partition, offset in other.entries:
            merged[partition] = max(offset, merged.get(partition, 0))
        return Offsets(merged)

    def meet(self, other: Offsets) -> Offsets:
        """Return the greatest offsets that both cover.

        >>> Offsets({"0": 3, "1": 1}).meet(Offsets({"1": 2})).entries
        (('1', 1),)
        """
        return Offsets({p: min(n, other[p]) for p, n in self.entries})

    def messages_since(self, earlier: Offsets) -> int:
        """Count the offsets from ``earlier`` up to here (an upper bound on messages: offsets may have gaps)."""
        return sum(max(0, n - earlier[p]) for p, n in self.entries)


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS: Final = dt.timedelta(milliseconds=1)


def moment(text: str) -> int:
    """Return the time that ``text`` is: milliseconds, or a date and time of ISO 8601 (without a zone: in UTC).

    >>> moment("1700000000000"), moment("2023-11-14T22:13:20"), moment("2023-11-14 23:13:20.5+01:00")
    (1700000000000, 1700000000000, 1700000000500)

    Raises `InvalidUsage` for any other text.
    """
    if text.isascii() and text.isdigit() and int(text) <= TIME_MAX:
        return int(text)
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or text.lstrip("-").isdigit():  # a date without separators is taken for a number that is wrong
        raise InvalidUsage(
            f"{text!r} is no time: give milliseconds since 1970, or a date and time like 2026-01-31T12:00"
        )
    at = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    if at < _EPOCH:
        raise InvalidUsage(f"{text!r} is before 1970, where time begins here")
    return (at - _EPOCH) // _MS


def shown(time: int) -> str:
    """Return a time as people read it, with its milliseconds.

    >>> shown(1_700_000_000_500), shown(2**62)
    ('2023-11-14T22:13:20.500Z (1700000000500)', '4611686018427387904')
    """
    at = clock(time)
    return at if at == str(time) else f"{at} ({time})"


def clock(time: int) -> str:
    """Return a time as people read it; one that no calendar has, as milliseconds.

    >>> clock(1_700_000_000_500), clock(2**62)
    ('2023-11-14T22:13:20.500Z', '4611686018427387904')
    """
    try:
        at = _EPOCH + time * _MS
    except OverflowError:
        return str(time)
    return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def told(lag: Mapping[str, Any]) -> str:
    """Return for people how far something is behind: in milliseconds (``ms``), and in counts of what is to come.

    >>> told({"ms": 1_234, "rows": 7}), told({"ms": 125_000, "rows": None, "bytes": 0}), told({"ms": None, "files": 1})
    ('1.2 s, 7 rows', '2 min 5 s', '1 files')
    """
    ms, counts = lag["ms"], [f"{count:,} {unit}" for unit, count in lag.items() if unit != "ms" and count]
    time = "" if ms is None else f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms // 60_000} min {ms // 1000 % 60} s"
    return ", ".join(filter(None, (time, *counts)))


class Every(msgspec.Struct, frozen=True):
    """A refresh each ``interval_ms``, one of them at ``aligned_ms``; None: at the creation."""

    interval_ms: int
    aligned_ms: int | None = None


class Refresh(msgspec.Struct, frozen=True):
    """When a view is refreshed: at ``ats``, by each of ``everies``, and ``at_creation`` if that is said.

    ``created``: the view's creation; None as long as it is not known: then there is no refresh yet.

    Without a schedule a view follows every time of its inputs (ON COMMIT).  With one it changes at its *refreshes*
    alone: an upstream change shows at the first refresh at or after its time, and between two refreshes the view stays
    unchanged.  So times of updates and frontiers alike are rounded up to refreshes; after the last refresh nothing can
    change, which is the empty frontier.

    A view has no refresh before its creation.  Its creation is a time too: the last one at which all that the view
    reads was complete when the view was defined, or the first at which it became complete after that.

    >>> hourly = Refresh((Every(60), Every(25, 5)), created=10)
    >>> [hourly.up(time) for time in (0, 10, 11, 31)]
    [10, 10, 30, 55]
    >>> [hourly.before(time) for time in (10, 11, 31)]
    [None, 10, 30]
    """

    everies: tuple[Every, ...] = ()
    ats: tuple[int, ...] = ()
    at_creation: bool = False
    created: int | None = None

    def up(self, time: int) -> int | None:
        """Return the first refresh at or after ``time``; None if there is none."""
        if self.created is None:
            return None
        least = max(time, self.created)
        found = [at for at in self._single if at >= least]
        for every in self.everies:
            begin = self._aligned(every)
            found.append(min(TIME_MAX, least + (begin - least) % every.interval_ms))
        return min(found, default=None)

    def before(self, time: int) -> int | None:
        """Return the last refresh before ``time``; None if there is none."""
        if self.created is None or time <= self.created:
            return None
        found = [at for at in self._single if at < time]
        for every in self.everies:
            begin = self._aligned(every)
            found.append(time - 1 - (time - 1 - begin) % every.interval_ms)
        return max((at for at in found if at >= self.created), default=None)

    def frontier(self, time: int) -> Frontier:
        """Return how far a view is known whose inputs are known up to ``time``.

        >>> Refresh(ats=(7, 9), created=0).frontier(8), Refresh(ats=(7, 9), created=0).frontier(10)
        (Frontier(at=9), Frontier(at=None))
        """
        found = self.up(time)
        return EMPTY if found is None else Frontier(found)

    @property
    def clause(self) -> Refresh:
        """What the view's author wrote, whenever the view was created."""
        return msgspec.structs.replace(self, created=None)

    def __str__(self) -> str:
        """As a statement says it.

        >>> str(Refresh((Every(3_600_000, 0), Every(1_500)), (5,), at_creation=True))
        "EVERY '3600 s' ALIGNED TO '1970-01-01 00:00:00.000', EVERY '1.5 s', AT '1970-01-01 00:00:00.005', AT CREATION"
        """
        shown = []
        for every in self.everies:
            aligned = "" if every.aligned_ms is None else f" ALIGNED TO '{_text(every.aligned_ms)}'"
            shown.append(f"EVERY '{every.interval_ms / 1000:g} s'{aligned}")
        shown += [f"AT '{_text(at)}'" for at in self.ats]
        return ", ".join(shown + ["AT CREATION"] * self.at_creation)

    @property
    def _single(self) -> tuple[int, ...]:
        assert self.created is not None, "there is no refresh before the creation is known"
        return (*self.ats, self.created) if self.at_creation else self.ats

    def _aligned(self, every: Every) -> int:
        assert self.created is not None, "there is no refresh before the creation is known"
        return self.created if every.aligned_ms is None else every.aligned_ms


def _text(time: int) -> str:
    return datetime.fromtimestamp(time / 1000, UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")


@dataclass(frozen=True, slots=True)
class Pace:
    """The schedule of a stage; None: it follows each time of its inputs.

    ``shown``: the stage is the view itself, which others read; False: only stages of its view do.

    A stage without a schedule reads its inputs as far as they are known, and its shard is known up to the same
    frontier.  A stage with a schedule reads through its last refresh, and its shard is known up to the next one.
    """

    refresh: Refresh | None = None
    shown: bool = True

    def read(self, known: Frontier) -> Frontier:
        """Return how far inputs are to be read that are known up to ``known``; the minimum: no refresh is due yet."""
        if self.refresh is None:
            return known
        last = self.refresh.before(as_time(known))
        return MINIMUM if last is None else Frontier(last + 1)

    def stands(self, read: int) -> Frontier:
        """Return how far the shard is known once the inputs are read to ``read``."""
        return Frontier(read) if self.refresh is None else self.refresh.frontier(read)

    def lands(self, lower: int, upper: int) -> int:
        """Return the time to which those of the window ``[lower, upper)`` are advanced."""
        return lower if self.refresh is None else upper - 1

    def start(self, known: Frontier, earliest: Frontier) -> tuple[int, int | None]:
        """Return the time at which a fresh shard is computed, and from which on it can be read (None: from then).

        ``earliest``: the first time at which all inputs can be read; it is before ``known``.  If no refresh is due, or
        the inputs cannot be read at the last one any longer, the contents of now are computed for the next one.  Other
        stages of the view may read them, and no other reader.

        >>> at_9 = Pace(Refresh(ats=(9,), created=3))
        >>> [at_9.start(Frontier(known), Frontier(earliest)) for known, earliest in ((8, 0), (12, 4), (12, 10))]
        [(7, 9), (9, None), (11, None)]
        """
        time = as_time(known) - 1
        if self.refresh is None:
            return time, None
        last = self.refresh.before(as_time(known))
        if last is not None and earliest <= Frontier(last):
            return last, None
        return time, self.refresh.up(as_time(known)) if self.shown else None

    def rebuilt(self, shard: int, earliest: Frontier) -> int | None:
        """Return the time at which a shard that stands at ``shard`` is computed anew; None: never again.

        ``earliest``: as in `start`.
        """
        if self.refresh is None:
            return shard
        last = self.refresh.before(shard + 1)
        return last if last is not None and earliest <= Frontier(last) else self.refresh.up(shard)

    def window(self, lower: int, changed: int) -> tuple[int, int] | None:
        """Return the window up to the refresh that shows what changed at ``changed``; None: none will.

        It begins after the refresh before that one, or at ``lower`` if that is later.
        """
        assert self.refresh is not None, "a stage without a schedule shows each time"
        shown = self.refresh.up(changed)
        if shown is None:
            return None
        before = self.refresh.before(shown)
        return (lower if before is None else max(lower, before + 1)), shown + 1


FOLLOWING: Final = Pace()
