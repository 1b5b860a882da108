"""A runtime is stopped at an I/O point, another one takes over and commits, and then the first one goes on.

It is stopped before a message, a statement, an access to a file, or a call of its log or its collections.  Whichever it
is, it commits nothing afterwards, its process ends with status 4, and it says that it was fenced.

Where it holds the endpoint's own lock when it is stopped, no other process can take over: the endpoint does not know of
another runtime yet.  Then what it commits is what it was about to commit, and its next step ends it.  (PostgreSQL ends
a session that leaves a transaction alone; here soon.)
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.kill.endpoints.changing import Changing
from tests.kill.endpoints.places import Place, Tables
from tests.kill.endpoints.processes import Nursery, Runtime

from strandline.cli.terminal.exits import Exit
from strandline.materialize.protocol.task import Checkpoint

pytestmark = [pytest.mark.server, pytest.mark.kill, pytest.mark.time_limit(600)]

SEED = 29
KINDS = ("sqlite", "postgres", "delta")
FIRST, STRIDE = 9, 17
"""In `make test`: the first point, and every which one after it."""
POINTS_MIN = 30
TURN_S_MAX = 180.0
HELD_S_MAX = 3.0
"""How long a successor is given while the endpoint's lock is held."""


class Haunted:
    """An endpoint, its collections, and runtimes one after the other."""

    def __init__(self, place: Place, runtimes: Nursery, root: Path) -> None:
        self.place = place
        self.changing = Changing(root / "location", SEED)
        self.held: list[str] = []
        self.met: list[str] = []
        self._runtimes = runtimes
        self._epochs = count(1)
        self._finish(self._start(until=self.changing.upper))

    def stop_at(self, point: int) -> bool:
        """Stop a runtime at a point, and see what it does afterwards; return whether there is such a point."""
        self.changing.write_round()
        zombie = self._start(stop_at=point)
        try:
            if zombie.ended(TURN_S_MAX) == {"exited": Exit.OK}:
                return False
            assert zombie.became() == {"stopped": signal.SIGSTOP}, zombie.complaints
            (label,) = zombie.said("stopped")
            self.met.append(label)
            successor = self._start(until=self.changing.upper)
            try:
                before = self._taken_over(zombie, successor, label)
            finally:
                successor.kill()
            self.changing.write_round()  # what it would do now
            assert zombie.ended(TURN_S_MAX) == {"exited": Exit.FENCED}, (
                f"{label}: {zombie.became()} {zombie.complaints}"
            )
            assert "strandline: fenced: " in zombie.complaints
            if before is not None:
                assert self.place.held() == before, f"{label}: it has changed what its successor committed"
        finally:
            zombie.kill()
        self._finish(self._start(until=self.changing.upper))
        return True

    def _taken_over(self, zombie: Runtime, successor: Runtime, label: str) -> tuple[Checkpoint | None, Tables] | None:
        """Have the successor commit, then let the zombie go on; return what it left, unless it had to wait for it."""
        if successor.ended(HELD_S_MAX if _locks(label) else TURN_S_MAX) is None:
            self.held.append(label)
            zombie.wake()
            self._finish(successor)
            return None
        self._finish(successor)
        self.changing.write_round()
        self._finish(self._start(until=self.changing.upper))
        before = self.place.held()
        zombie.wake()
        return before

    def _start(self, **how: Any) -> Runtime:
        place = self.place
        return self._runtimes.start(
            self.changing.root, kind=place.kind, options=place.options, push=False, epoch=next(self._epochs), **how
        )

    def _finish(self, runtime: Runtime) -> None:
        """Wait until a runtime has come to its end, and check the endpoint."""
        assert runtime.ended(TURN_S_MAX) == {"exited": Exit.OK}, runtime.complaints
        self.place.check_whole(self.changing, self.changing.upper)


def _locks(label: str) -> bool:
    """Tell whether a runtime may hold the endpoint's lock before what a label names."""
    return label.startswith(("SQLiteConnection.", "PostgresConnection."))


def haunt(haunted: Haunted, points: Iterator[int], record_property: Any) -> None:
    """Stop a runtime at each of some points, until there is none."""
    while haunted.stop_at(next(points)):
        pass
    kind = haunted.place.kind
    record_property("FIGURE", f"zombies_{kind}_held:{len(haunted.held)} {len(haunted.met)} - info")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_zombie_commits_nothing_and_says_that_it_was_fenced(
    place: Place, runtimes: Nursery, tmp_path: Path, record_property: Any
) -> None:
    """Damage: a process that was presumed dead overwrites its successor's rows; or goes on as if nothing had been."""
    haunted = Haunted(place, runtimes, tmp_path)
    haunt(haunted, count(FIRST, STRIDE), record_property)
    assert FIRST + STRIDE * len(haunted.met) > POINTS_MIN


@pytest.mark.slow
@pytest.mark.time_limit(3600)
@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_zombie_at_any_point_commits_nothing(
    place: Place, runtimes: Nursery, tmp_path: Path, record_property: Any
) -> None:
    """Damage: the same, at one of many moments."""
    haunted = Haunted(place, runtimes, tmp_path)
    haunt(haunted, count(1), record_property)
    assert len(haunted.met) >= POINTS_MIN
