"""`strandline driver serve` is a Flow connector: requests on stdin, answers on stdout, the reason of a failure last."""

from __future__ import annotations

import json
import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "strandline", "driver", "serve", "duckdb"]


def serve(requests: str, codec: str = "json") -> subprocess.CompletedProcess[str]:
    """Return what a connector says to requests."""
    env = {**os.environ, "FLOW_RUNTIME_CODEC": codec}
    return subprocess.run(COMMAND, input=requests, capture_output=True, text=True, env=env, timeout=60, check=False)


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
