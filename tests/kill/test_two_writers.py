"""Two processes append to one shard, one of them killed and started again all the time: nothing is lost or doubled.

The appends are small, so they and their order live in Consensus alone; rollups, compaction and truncation go on
meanwhile, in both processes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from writing_child import EPOCH, SHARD, open_client

CHILD = Path(__file__).parent / "writing_child.py"
SCHEMAS = itertools.count()
LONG_KILLS = 30
LONG_SECONDS = 2.0
SHORT_KILLS = 4
SHORT_SECONDS = 0.5
POLL_SECONDS = 0.05
PLACES = ["sqlite", "postgres", "objects"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    """Return the place of the shard, as it is passed to the children."""
    match request.param:
        case "postgres":
            server = request.getfixturevalue("postgres_server")
            return {"postgres": {"url": server.url, "schema": f"two_writers_{next(SCHEMAS)}"}}
        case "objects":
            server = request.getfixturevalue("s3_server")
            return {"objects": {"url": f"s3://{server.bucket}/two-writers/{next(SCHEMAS)}", **server.storage}}
        case name:
            return {name: {}}


class Writers:
    """The two processes, the answers that they got, and the shard."""

    def __init__(self, place: dict[str, dict[str, str]], root: Path) -> None:
        self.place = place
        self.root = root
        self.uppers: list[int] = []
        self.incarnation = 0

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a process that writes marks of a name that no other had."""
        self.incarnation += 1
        arguments = [json.dumps(self.place), str(self.root / f"{name}.log"), f"{name}{self.incarnation}"]
        return subprocess.Popen([sys.executable, str(CHILD), *arguments])

    def acknowledged(self, name: str) -> list[tuple[int, str]]:
        """Return what a log says; its last line may be torn, and then was not finished."""
        log = self.root / f"{name}.log"
        whole = log.read_text().rpartition("\n")[0] if log.exists() else ""
        return [(int(time), mark) for time, _, mark in (line.partition(" ") for line in whole.splitlines())]

    def look(self) -> dict[str, int]:
        """Note the upper; return each mark in the shard with its time.  No mark may be there twice."""

        async def read() -> tuple[int, list[Any]]:
            client, close = open_client(self.place, self.root)
            records = await client.records(SHARD, EPOCH)
            upper = await records.refresh()
            found = await records.contents()
            close()
            assert upper.at is not None
            return upper.at, found

        upper, found = asyncio.run(read())
        self.uppers.append(upper)
        assert all(record.diff == 1 for record in found), "a mark was appended twice at one time"
        assert max(Counter(record.data for record in found).values(), default=1) == 1, "a mark was appended twice"
        return {record.data.decode(): record.time for record in found}

    def run(self, kills: int, seconds: float) -> None:
        """Kill and restart one of the two, and see that the other goes on."""
        steady, victim = self.start("steady"), self.start("victim")
        try:
            for _ in range(kills):
                before = {name: len(self.acknowledged(name)) for name in ("steady", "victim")}
                _still_running(steady, seconds)
                # Else the victim was killed while it loaded its modules; a busy machine may keep either from all else.
                while any(len(self.acknowledged(name)) == told for name, told in before.items()):
                    _still_running(steady, POLL_SECONDS)
                assert victim.poll() is None, "the victim ended by itself"
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait()
                self.look()
                victim = self.start("victim")
        finally:
            for process in (steady, victim):
                process.kill()
                process.wait()

    def check(self) -> tuple[int, int]:
        """Hold the laws; return how many appends of each process were acknowledged."""
        found = self.look()
        told = {name: self.acknowledged(name) for name in ("steady", "victim")}
        for name, lines in told.items():
            assert [found.get(mark) for _, mark in lines] == [time for time, _ in lines], (
                f"{name}: acknowledged, not there"
            )
        times = [time for lines in told.values() for time, _ in lines]
        assert len(times) == len(set(times)), "two appends were acknowledged at one upper"
        assert self.uppers == sorted(self.uppers)
        return len(told["steady"]), len(told["victim"])


def endure(writers: Writers, kills: int, seconds: float, record_property: Any) -> None:
    """Let them write while one is killed again and again; both must get something done between two kills."""
    writers.run(kills, seconds)
    steady, victim = writers.check()
    (name,) = writers.place
    verdict = "pass" if min(steady, victim) >= kills else "miss"
    record_property("FIGURE", f"two_writers_{name}_acknowledged {steady + victim} >={2 * kills} {verdict}")
    assert verdict == "pass"


def _still_running(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a while pass, during which a process that never ends by itself does not."""
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)


@pytest.mark.drawn(3)
@pytest.mark.kill
@pytest.mark.server
def test_of_two_writers_one_of_which_is_killed_nothing_is_lost_or_doubled(
    place: dict[str, dict[str, str]], tmp_path: Path, record_property: Any
) -> None:
    """Damage: an acknowledged append vanishes, or is there twice, when a process dies beside another."""
    endure(Writers(place, tmp_path), SHORT_KILLS, SHORT_SECONDS, record_property)


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.server
def test_of_two_writers_for_a_minute_nothing_is_lost_or_doubled(
    place: dict[str, dict[str, str]], tmp_path: Path, record_property: Any
) -> None:
    """Damage: an acknowledged append vanishes, or is there twice, when a process dies beside another."""
    endure(Writers(place, tmp_path), LONG_KILLS, LONG_SECONDS, record_property)
