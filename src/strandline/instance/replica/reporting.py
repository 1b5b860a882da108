"""Reports of a replica: what has changed since the last one, for one connection.

A connection begins with nothing known, so its first report holds everything: a controller assumes the minimum of what
it has not been sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from strandline.algebra.schema import Column
from strandline.compute.sink.disagreement import Disagreement
from strandline.frontier.antichain import EMPTY, Frontier
from strandline.instance.protocol.messages import Frontiers, Response, Status
from strandline.problem import cases_of

T = TypeVar("T")


@dataclass(frozen=True)
class Standing:
    """How everything stands, as `Frontiers` and `Status` name it."""

    writes: Mapping[str, Frontier] = field(default_factory=dict)
    needs: Mapping[str, Frontier] = field(default_factory=dict)
    advanced: int | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    under_way: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    disagreements: Mapping[str, Disagreement] = field(default_factory=dict)
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    added: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)


@dataclass
class Reporter:
    """What one connection was sent."""

    sent: Standing = field(default_factory=Standing)

    def begin_turns(self) -> None:
        """Take note that turns are counted anew: the other end has forgotten which one was done last."""
        self.sent = replace(self.sent, advanced=None)

    def changes(self, now: Standing) -> list[Response]:
        """Return the messages that bring the other end from what it was sent to how everything stands now.

        What is no longer written, because it was dropped, is gone: that is not the empty frontier, which would say that
        it is complete for ever.
        """
        before, self.sent = self.sent, now
        writes, needs = _changed(before.writes, now.writes), _changed(before.needs, now.needs)
        released = dict.fromkeys(before.needs.keys() - now.needs.keys(), EMPTY)
        advanced = None if now.advanced == before.advanced else now.advanced
        problems = _changed(before.problems, now.problems) | dict.fromkeys(before.problems.keys() - now.problems, "")
        under_way: dict[str, int | None] = {**_changed(before.under_way, now.under_way)}
        under_way |= dict.fromkeys(before.under_way.keys() - now.under_way.keys())
        counters = _changed(before.counters, now.counters)
        disagreements, writers = (
            _changed(before.disagreements, now.disagreements),
            _changed(before.writers, now.writers),
        )
        notices, added = _changed(before.notices, now.notices), _changed(before.added, now.added)
        ended = {
            "counters": _gone(before.counters, now.counters),
            "disagreements": _gone(before.disagreements, now.disagreements),
            "writers": _gone(before.writers, now.writers),
            "notices": _gone(before.notices, now.notices),
            "added": _gone(before.added, now.added),
        }
        vanished = {kind: names for kind, names in ended.items() if names}
        cases = {name: cases for name, said in problems.items() if (cases := cases_of(said))}
        noticed = {name: tuple(map(cases_of, said)) for name, said in notices.items() if any(map(cases_of, said))}
        status = Status(problems, under_way, counters, disagreements, writers, notices, vanished, added, cases, noticed)
        gone = _gone(before.writes, now.writes)
        found: list[Response] = []
        if status != Status():
            found.append(status)
        if (
            writes or needs or released or gone or advanced is not None
        ):  # last: by then it is known why something stands still
            found.append(Frontiers(writes, needs | released, advanced, gone))
        return found


def _changed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def _gone(before: Mapping[str, T], now: Mapping[str, T]) -> tuple[str, ...]:
    return tuple(sorted(before.keys() - now.keys()))
