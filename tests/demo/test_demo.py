"""A slice of the demo, as a person would run it: a kill in the middle, and the proof at the end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from compiled import as_in_production

pytestmark = pytest.mark.demo

DAYS = 3


def run(*arguments):
    """Run ``strandline demo`` on a few days, compiled as for a user."""
    command = [sys.executable, "-m", "strandline", "demo", "--days", str(DAYS), "--months", "1", *arguments]
    return subprocess.run(command, env=as_in_production(), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The demo, run once: where, and what it said."""
    root = tmp_path_factory.mktemp("demo") / "here"
    return root, run("--json", "--dir", str(root))


def test_three_views_and_four_tables_are_verified_after_a_kill(done):
    """Damage: a new user that tries the two commands of the README sees them fail."""
    root, said = done
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert (found["views_verified"], found["tables_verified"], found["differences"]) == (3, 4, 0)
    assert (found["ticks"], found["restarts"], found["killed_in_a_step"]) == (1 + DAYS, 1, True)
    assert found["rows"] > 30_000
    assert found["directory"] == str(root)
    assert len(found["step_seconds"]) == 1 + DAYS


def test_the_demo_says_where_it_is_and_how_far_it_is_come(done):
    """A long run without a word looks like one that hangs."""
    root, said = done
    assert str(root) in said.stderr
    for step in ("the 1 months before", "December 1", f"December {DAYS}", "the proof"):
        assert step in said.stderr
    assert "WARN" not in said.stderr


def test_a_directory_that_is_in_use_is_refused(done):
    """Damage: the demo mixes its files with the user's own."""
    root, _ = done
    said = run("--dir", str(root))
    assert said.returncode == 1
    assert said.stderr == f"strandline: the directory {str(root)!r} is not empty; the demo needs a fresh one\n"
