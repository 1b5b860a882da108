"""What the outside saw of some shards: what was asked, what was answered, what was read; and the laws about that.

Written from what persist promises, never from its code: this file knows updates, times, epochs and answers, and
neither states nor diffs nor seqnos.  An *attempt* is one request to append; its first update carries a row that is
never retracted, its *marker*, so a read shows by itself which attempts are in it.  The laws, each checked as soon as it
can be broken:

- P1: two reads of one shard at one time are equal, by any two readers, whatever happened in between.
- P3: what was acknowledged before a read began is in it, at times up to the read's.
- P6: an attempt is in a read whole and once or not at all; a refused one never is; of the attempts that share a
  ``purpose`` (a transaction's token) at most one ever is.
- atomic: an attempt over several shards is in all of them or in none, at every time that can be read.
- fence: what was asked under an epoch after a newer one was admitted never is in a read; along a shard's times the
  epochs of its attempts never go back.
- bounds: attempts of one shard are at disjoint times.
- holds: a time that a reader holds can be read.

Trap: an answer that never came says nothing; such an attempt may be in reads or not, but the same in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

from laws.broken import LawBrokenError, require


class Update(NamedTuple):
    """At ``time`` the row ``row`` is there ``diff`` times more."""

    row: bytes
    time: int
    diff: int


class Answer(Enum):
    """The answer that the caller received."""

    NONE = "nothing"
    YES = "it is durable"
    NO = "it was refused, and changed nothing"


@dataclass(eq=False, slots=True)
class Attempt:
    """One request: ``updates`` by shard, at times in ``[lower, upper)``."""

    purpose: str
    updates: Mapping[str, tuple[Update, ...]]
    lower: int
    upper: int
    epoch: int | None
    asked: int
    answer: Answer = Answer.NONE

    def marker(self, shard: str) -> Update:
        """Return the update that shows whether this attempt is in a read of ``shard``."""
        return self.updates[shard][0]


Content = Mapping[bytes, int]
"""A multiset of rows; a read at one time."""

EVERYTHING: Final = 2**62
"""A time beyond all times of a run."""


class History:
    """The outside's memory of one run.  Ticks are its own: they only say what came before what."""

    def __init__(self) -> None:
        self._ticks = 0
        self.attempts: list[Attempt] = []
        self.reads = 0
        self._by_shard: dict[str, list[Attempt]] = {}
        self._purposes: dict[str, tuple[int, int]] = {}  # acknowledged: when, and at which time
        self._read: dict[tuple[str, int], Content] = {}
        self._presence: dict[Attempt, tuple[str, bool]] = {}  # of several shards: the first reader, and what it saw
        self._admitted: dict[str, list[tuple[int, int]]] = {}  # shard: when, and which epoch

    def tick(self) -> int:
        """Return a number greater than any before."""
        self._ticks += 1
        return self._ticks

    # ---- what was asked and answered ---------------------------------------------------------------------------------

    def ask(
        self, purpose: str, updates: Mapping[str, Iterable[Update]], lower: int, upper: int, epoch: int | None = None
    ) -> Attempt:
        """Note a request that is about to be made."""
        kept = {shard: tuple(each) for shard, each in updates.items()}
        attempt = Attempt(purpose, {s: u for s, u in kept.items() if u}, lower, upper, epoch, self.tick())
        self.attempts.append(attempt)
        for shard in attempt.updates:
            self._by_shard.setdefault(shard, []).append(attempt)
        return attempt

    def tell(self, attempt: Attempt, answer: Answer) -> None:
        """Note its answer."""
        attempt.answer = answer
        if answer is Answer.YES and attempt.updates:
            self.tell_purpose(attempt.purpose, attempt.lower)
            self._check_fenced(attempt)

    def tell_purpose(self, purpose: str, time: int) -> None:
        """Note that ``purpose`` was said to be fulfilled at ``time``, by whichever of its attempts."""
        _, known = self._purposes.setdefault(purpose, (self.tick(), time))
        require("P6", known == time, f"{purpose} was acknowledged at {known}, and then at {time}")

    def admitted(self, shard: str, epoch: int) -> None:
        """Note that ``epoch`` was admitted to ``shard``: older ones are fenced from here on."""
        self._admitted.setdefault(shard, []).append((self.tick(), epoch))

    def purposes(self) -> frozenset[str]:
        """Return what was acknowledged so far: what a read that begins now must show."""
        return frozenset(self._purposes)

    def facts(self) -> int:
        """Return a hash of what was read so far, in whatever order: what later reads are held against."""
        return hash(frozenset((where, frozenset(content.items())) for where, content in self._read.items()))

    @property
    def acknowledged(self) -> int:
        """How many different things were acknowledged as durable."""
        return len(self._purposes)

    # ---- what was read -----------------------------------------------------------------------------------------------

    def read(self, shard: str, time: int, content: Content, began: int) -> None:
        """Note a read that began at tick ``began``, and hold it against everything known before."""
        self.reads += 1
        content = {row: count for row, count in content.items() if count}
        known = self._read.setdefault((shard, time), content)
        if known != content:  # said only when it is broken: showing takes longer than comparing
            raise LawBrokenError("P1", f"{shard} at {time} was {_show(known)}, and is {_show(content)}")
        negative = [row for row, count in content.items() if count < 0]
        require("negative", not negative, f"{shard} at {time} has a negative count of {negative[:3]}")
        if shard in self._by_shard:
            self._check_attempts(shard, time, content, began)

    def read_whole(self, shard: str, updates: Iterable[Update], times: Sequence[int], began: int) -> None:
        """Note a read of all updates there are, as reads at each of ``times``, which ascend."""
        ordered = sorted(updates, key=lambda u: u.time)
        content: Counter[bytes] = Counter()
        position = 0
        for time in times:
            while position < len(ordered) and ordered[position].time <= time:
                content[ordered[position].row] += ordered[position].diff
                position += 1
            self.read(shard, time, dict(content), began)

    def unreadable(self, shard: str, time: int, why: str) -> None:
        """Note that a held time could not be read."""
        raise LawBrokenError("holds", f"{shard} is held at {time} and cannot be read there: {why}")

    def finish(self) -> None:
        """Check what needs the end: every shard has been read, by a reader that came afterwards."""
        for shard, attempts in self._by_shard.items():
            there = sorted((a for a in attempts if self._landed(shard, a)), key=lambda a: a.lower)
            for earlier, later in pairwise(there):
                apart = earlier.upper <= later.lower
                require("bounds", apart, f"{shard}: {earlier.purpose} and {later.purpose} share times")
            fenced = [a for a in there if a.epoch is not None]
            for earlier, later in pairwise(fenced):
                require(
                    "fence",
                    (earlier.epoch or 0) <= (later.epoch or 0),
                    f"{shard}: epoch {later.epoch} appended {later.purpose} after {earlier.epoch} had appended",
                )
            for attempt in fenced:
                self._check_fenced(attempt)

    def _landed(self, shard: str, attempt: Attempt) -> bool:
        last = max((time for known, time in self._read if known == shard), default=-1)
        return last >= attempt.marker(shard).time and attempt.marker(shard).row in self._read[shard, last]

    # ---- the laws ----------------------------------------------------------------------------------------------------

    def _check_attempts(self, shard: str, time: int, content: Content, began: int) -> None:
        expected: Counter[bytes] = Counter()
        there: set[str] = set()
        due: set[str] = set()
        for attempt in self._by_shard[shard]:
            marker = attempt.marker(shard)
            if marker.time > time:
                continue
            when, at = self._purposes.get(attempt.purpose, (EVERYTHING, EVERYTHING))
            if when < began and at == attempt.lower:
                due.add(attempt.purpose)
            self._check_presence(shard, time, attempt, marker.row in content)
            if marker.row not in content:
                continue
            twice = attempt.purpose in there
            require("P6", not twice, f"{shard} at {time} holds two attempts at {attempt.purpose}")
            there.add(attempt.purpose)
            for update in attempt.updates[shard]:
                if update.time <= time:
                    expected[update.row] += update.diff
        require("P3", due <= there, f"{shard} at {time} lacks {sorted(due - there)}, acknowledged before")
        whole = {row: count for row, count in expected.items() if count}
        if whole != content:
            shown = f"{shard} at {time} is {_show(content)}; whole attempts give {_show(whole)}"
            raise LawBrokenError("P6", shown)

    def _check_presence(self, shard: str, time: int, attempt: Attempt, there: bool) -> None:
        if there and attempt.answer is Answer.NO:
            raise LawBrokenError("P6", f"{shard} at {time} holds {attempt.purpose}, which was refused")
        if len(attempt.updates) > 1:
            witness, seen = self._presence.setdefault(attempt, (shard, there))
            what = f"{attempt.purpose} at {attempt.lower} is {'' if seen else 'not '}in {witness}"
            require("atomic", seen == there, f"{what}, and {'' if there else 'not '}in {shard} (read at {time})")

    def _check_fenced(self, attempt: Attempt) -> None:
        if attempt.epoch is None:
            return
        for shard in attempt.updates:
            newer = [epoch for when, epoch in self._admitted.get(shard, ()) if when < attempt.asked]
            fenced = bool(newer) and max(newer) > attempt.epoch
            require(
                "fence",
                not fenced,
                f"{shard}: {attempt.purpose} of epoch {attempt.epoch} is in, and {newer} was admitted",
            )


def _show(content: Content) -> str:
    return "{" + ", ".join(f"{row.decode(errors='replace')}: {count}" for row, count in sorted(content.items())) + "}"
