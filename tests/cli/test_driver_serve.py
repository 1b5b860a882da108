"""`strandline driver serve` is a Flow connector: requests on stdin, answers on stdout, the reason of a failure last."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "strandline", "driver", "serve", "duckdb"]


def serve(requests: str, codec: str = "json") -> subprocess.CompletedProcess[str]:
    """Return what a connector says to requests."""
    env = {**os.environ, "FLOW_RUNTIME_CODEC": codec}
    return subprocess.run(COMMAND, input=requests, capture_output=True, text=True, env=env, timeout=150, check=False)


def test_a_connector_says_what_it_takes_and_ends_with_its_input() -> None:
    """Damage: a runtime cannot show a form for the endpoint, or its connectors never end."""
    done = serve(json.dumps({"spec": {"connectorType": "IMAGE", "config": {}}}) + "\n")
    assert done.returncode == 0, done.stderr
    (answer,) = (json.loads(line) for line in done.stdout.splitlines())
    assert answer["spec"]["protocol"] == 3032023
    assert "path" in answer["spec"]["configSchema"]["properties"]
    assert "table" in answer["spec"]["resourceConfigSchema"]["properties"]


def test_the_last_line_of_a_failure_says_why() -> None:
    """Damage: the runtime's user sees that a connector failed, and not why."""
    done = serve("no message\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "JSON is malformed" in done.stderr.splitlines()[-1]


INSTALLED = [sys.executable, "-P", "-m", "strandline", "driver"]
"""The command as it is installed: Python does not look for modules in the current directory by itself."""
TEMPLATE = Path(__file__).parents[2] / "docs" / "template_driver.py"


def test_a_driver_in_the_current_directory_is_found(tmp_path: Path) -> None:
    """Damage: the command that docs/drivers.md shows first does not run."""
    (tmp_path / "docs").mkdir()
    shutil.copy(TEMPLATE, tmp_path / "docs")
    name, env = "docs.template_driver:KIND", {**os.environ, "FLOW_RUNTIME_CODEC": "json"}
    asked = json.dumps({"spec": {"connectorType": "IMAGE", "config": {}}}) + "\n"
    served = subprocess.run(
        [*INSTALLED, "serve", name], cwd=tmp_path, env=env, input=asked, capture_output=True, text=True, check=False
    )
    assert "path" in json.loads(served.stdout)["spec"]["configSchema"]["properties"], served.stderr
    checked = subprocess.run(
        [*INSTALLED, "check", name, "--config", '{"path": "one.json"}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "put {n} into the option" in checked.stderr, checked.stderr


def test_a_file_in_place_of_a_pipe_is_named(tmp_path: Path) -> None:
    """Damage: who tries the command with `> answers.txt` sees an error of Python's event loop."""
    with (tmp_path / "answers.txt").open("w") as answers:
        done = subprocess.run(COMMAND, input="", stdout=answers, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "stdout of a served driver is a file" in done.stderr
    assert "Traceback" not in done.stderr
