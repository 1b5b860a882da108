"""A test that hangs fails by its name, wherever it hangs, and the others go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import stages
import time_limits

ROOT = Path(__file__).resolve().parent.parent.parent

PLANTED = """
import asyncio, itertools, socket, threading
import pytest

pytestmark = pytest.mark.time_limit(0.5)

@pytest.mark.time_limit(60)
def test_before(): pass

def test_in_python():
    n = 0
    while True:
        n += 1

def test_in_a_socket():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)

def test_in_a_join():
    waiting = threading.Thread(target=threading.Event().wait, daemon=True, name="waits")
    waiting.start()
    waiting.join()

def test_in_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

async def waits_for_nothing():
    await asyncio.get_running_loop().create_future()

def test_in_a_coroutine():
    asyncio.run(waits_for_nothing())

def test_that_catches_everything():
    for _ in itertools.count():
        try:
            threading.Event().wait()
        except Exception:
            pass

def test_that_catches_even_that():
    caught = 0
    while caught < 2:
        try:
            threading.Event().wait()
        except BaseException:
            caught += 1
    threading.Event().wait()

@pytest.fixture
def hangs():
    threading.Event().wait()

def test_in_a_fixture(hangs): pass

@pytest.fixture
def never_ends():
    yield
    threading.Event().wait()

def test_in_the_end_of_a_fixture(never_ends): pass

@pytest.mark.time_limit(60)
def test_that_asks_for_more():
    threading.Event().wait(0.5)

@pytest.mark.time_limit(60)
def test_after(): pass
"""
HANGING = {
    "test_in_python": "in test_in_python",
    "test_in_a_socket": "in test_in_a_socket",
    "test_in_a_join": "in test_in_a_join",
    "test_in_a_lock": "in test_in_a_lock",
    "test_in_a_coroutine": "in waits_for_nothing",
    "test_that_catches_everything": "in test_that_catches_everything",
    "test_that_catches_even_that": "in test_that_catches_even_that",
    "test_in_a_fixture": "in hangs",
    "test_in_the_end_of_a_fixture": "in never_ends",
}
"""Each planted test, and what its stacks must show."""
GOOD = {"test_before", "test_after", "test_that_asks_for_more"}

UNSTOPPABLE = """
import itertools, pytest
@pytest.mark.time_limit(0.3, grace_s=0.3)
def test_in_c(): sum(itertools.repeat(0))
"""


def ran(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest over ``text`` in a process of its own, with the plugin; return how it ended."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "time_limits", "-p", "no:randomly", *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is said of each planted test: why it failed, or nothing."""
    directory = tmp_path_factory.mktemp("planted")
    ran(directory, PLANTED, "--junitxml=report.xml")
    found: dict[str, str] = {}
    for case in ET.parse(directory / "report.xml").iter("testcase"):
        failure = case.find("failure") if case.find("failure") is not None else case.find("error")
        name = case.get("name") or ""
        found[name] = found.get(name, "") + ("" if failure is None else f"{failure.get('message')}\n{failure.text}")
    return found


@pytest.mark.parametrize("name", HANGING)
def test_a_test_that_hangs_fails_by_its_name_with_every_stack(told: dict[str, str], name: str) -> None:
    """Damage: a mistake that makes something wait for ever looks like a slow machine, and no stack shows where."""
    assert "HungError" in told[name]
    assert "took longer than 0.5 s" in told[name]
    assert HANGING[name] in told[name]
    if name == "test_in_a_join":
        assert "in wait" in told[name], "the stack of the thread that never ends is there, too"


def test_the_others_go_on_and_one_that_asks_for_more_time_has_it(told: dict[str, str]) -> None:
    """Damage: one test that hangs costs the verdict of all that come after it."""
    assert {name for name, why in told.items() if not why} == GOOD
    assert told.keys() == GOOD | HANGING.keys()


def test_what_cannot_be_interrupted_ends_its_process_and_shows_where(tmp_path: Path) -> None:
    """Damage: a call into C that never returns holds the run until someone kills it, without a word of where it was."""
    ended = ran(tmp_path, UNSTOPPABLE)
    assert ended.returncode != 0
    assert "Timeout" in ended.stderr
    assert "in test_in_c" in ended.stderr


def test_a_thread_that_a_test_left_does_not_keep_the_process(tmp_path: Path) -> None:
    """Damage: all tests have passed, and the run never ends."""
    leaves = "import threading\ndef test_leaves(): threading.Thread(target=threading.Event().wait).start()\n"
    shorter = "import time_limits\ntime_limits.ENDING_S = 0.3\n"
    (tmp_path / "conftest.py").write_text(shorter)
    ended = ran(tmp_path, leaves)
    assert "1 passed" in ended.stdout
    assert ended.returncode != 0, "what did not end by itself is no success"


def test_every_stage_has_a_limit_that_ends_before_the_stage_does() -> None:
    """Damage: the stage is killed first, and the test that hung is one of hundreds."""
    for stage, seconds in time_limits.LIMITS_S.items():
        minutes = stages.LONG_MINUTES_MAX if stage in stages.NOT_IN_CI else stages.STAGE_MINUTES_MAX
        assert seconds + time_limits.GRACE_S < minutes * 60


def test_the_tests_of_the_project_have_limits(request: pytest.FixtureRequest) -> None:
    """Damage: the mechanism works, and no run uses it."""
    assert request.config.pluginmanager.has_plugin("time_limits")
