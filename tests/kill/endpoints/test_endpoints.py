"""Endpoints follow collections that change all the time, while everything that takes part is killed again and again.

Killed are the runtime, the process of a connector, and servers: also between a commit and its answer.  What was killed
comes back, and no one helps.  After each kill, and at the end:

- an endpoint that keeps a checkpoint equals the collections at it; nothing is missing, nothing is there twice;
- Redis has each key as before or as after the transaction that was cut off, as its page says, and in the end is whole;
- a webhook gets some requests twice, which are equal and have one key, as its page says;
- where the endpoint keeps no checkpoint, a transaction that was cut off is done again with exactly the same extent.
"""

from __future__ import annotations

import signal
from collections import Counter
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.kill.endpoints.changing import Changing
from tests.kill.endpoints.places import Place
from tests.kill.endpoints.processes import Nursery, Runtime, wait

from strandline.materialize.protocol.task import Progress

pytestmark = [pytest.mark.server, pytest.mark.kill, pytest.mark.time_limit(900)]

SEED = 20130101
BACK_S_MAX = 240.0
WORKING_S_MAX = 0.6
"""Within how long after it has begun its work, or was started, the kill comes."""
POINTS = (40, 600)
"""Before which of its I/O points a runtime is killed, if it is not killed at a moment."""
FATELESS_MAX = 3
KINDS = ("postgres", "redis", "kafka", "sqlite", "connector", "webhook")
LONG_KILLS = {"postgres": 18, "redis": 10, "kafka": 8, "sqlite": 8, "connector": 10, "webhook": 8}
SHORT_KILLS = {"postgres": 3, "redis": 1, "kafka": 1, "sqlite": 1, "connector": 1, "webhook": 1}


class Campaign:
    """One endpoint, its runtime, and the one who kills."""

    def __init__(self, place: Place, runtimes: Nursery, root: Path, kills: int) -> None:
        self.place = place
        self.random = Random(f"{SEED} {place.kind} {kills}")
        self.changing = Changing(root / "location", SEED + kills)
        self.killed: Counter[str] = Counter()
        self.replayed = 0
        self.fated = False
        """Whether the runtime will be killed at one of its I/O points."""
        self._fate = 0.5 if kills > FATELESS_MAX else 0.0
        self._runtimes = runtimes
        self._epoch = 0
        self._left: Progress | None = None

    def start(self) -> Runtime:
        """Start the next runtime."""
        self._epoch += 1
        place = self.place
        fate = {"kill_at": self.random.randint(*POINTS)} if self.fated else {}
        return self._runtimes.start(
            self.changing.root, kind=place.kind, options=place.options, push=place.push, epoch=self._epoch, **fate
        )

    def reach(self, runtime: Runtime, time: int) -> None:
        """Return once the endpoint is at ``time``."""
        runtime.wait_until(
            lambda: any(each >= time for each in runtime.said("position")[-1:]), BACK_S_MAX, f"to reach {time}"
        )

    def run(self, kills: int) -> None:
        """Kill again and again; check after each kill, and at the end."""
        self.changing.start()
        runtime = self.start()
        try:
            victims = cycle(["runtime", *self.place.victims])
            for _ in range(kills):
                victim = "runtime at a point" if self.fated else next(victims)
                if not self.fated:
                    # In its first moments, or at work again.
                    if victim != "runtime" or self.random.random() < 0.7:
                        self.reach(runtime, self.changing.upper)
                    wait(self.random.uniform(0, WORKING_S_MAX))
                runtime = self.kill(victim, runtime)
                self.killed[victim] += 1
            if self.fated:  # it may be killed yet
                self.fated = False
                runtime.kill()
                runtime = self.start()
            self.changing.stop()
            self.reach(runtime, self.changing.upper)
            runtime.kill()
            self.check_replay(runtime)
            self.place.check_whole(self.changing, self.changing.upper)
        finally:
            self.changing.stop()
            runtime.kill()

    def kill(self, victim: str, runtime: Runtime) -> Runtime:
        """Kill, check what is left, and have all run again."""
        if victim in self.place.victims:
            self.place.victims[victim](runtime)
            if self.place.keeps:
                self.place.check(self.changing)
            return runtime
        if self.fated:
            assert runtime.ended(BACK_S_MAX) == {"killed": signal.SIGKILL}, runtime.complaints
        runtime.kill()
        self.check_replay(runtime)
        self._left = self.changing.progress()
        self.place.check(self.changing)
        self.fated = self.random.random() < self._fate
        return self.start()

    def check_replay(self, runtime: Runtime) -> None:
        """Check of a runtime how it went on with the transaction that had been cut off, if one was.

        An endpoint with a checkpoint of its own has all of it or nothing.  Any other one gets exactly the same again.
        """
        left, opened, began = self._left, runtime.said("opened"), runtime.said("began")
        if left is None or left.extent is None or left.extent.base != left.checkpoint or not opened or not began:
            return
        if self.place.keeps:
            assert opened[0] in {left.checkpoint.time(self.place.spec.state_keys), left.extent.upper}
        else:
            assert opened[0] is None
            assert began[0] == left.extent.upper, "it was done again with another extent"
        self.replayed += 1


def survive(campaign: Campaign, kills: int, record_property: Any) -> None:
    """Run a campaign, and record what it was."""
    campaign.run(kills)
    victims = ",".join(f"{name.replace(' ', '_')}:{number}" for name, number in sorted(campaign.killed.items()))
    record_property(
        "FIGURE", f"endpoint_{campaign.place.kind}_kills_{victims}_replayed:{campaign.replayed} {kills} - info"
    )
    assert sum(campaign.killed.values()) == kills


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_kill_of_whatever_takes_part_loses_nothing_and_doubles_nothing(
    place: Place, runtimes: Nursery, tmp_path: Path, record_property: Any
) -> None:
    """Damage: after a crash a user's table lacks a row, or has one twice."""
    kills = SHORT_KILLS[place.kind]
    survive(Campaign(place, runtimes, tmp_path, kills), kills, record_property)


@pytest.mark.slow
@pytest.mark.time_limit(1800)
@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_many_kills_lose_nothing_and_double_nothing(
    place: Place, runtimes: Nursery, tmp_path: Path, record_property: Any
) -> None:
    """Damage: after one crash of many, at a rare moment, a user's table lacks a row, or has one twice."""
    kills = LONG_KILLS[place.kind]
    survive(Campaign(place, runtimes, tmp_path, kills), kills, record_property)
