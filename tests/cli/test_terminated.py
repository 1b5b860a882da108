"""A supervisor that stops a service signals all of its processes: `run` and Spark's JVM, in any order."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

pytestmark = pytest.mark.kill

PROJECT = {
    "strandline.yml": "location: data",
    "sources/n.sql": "CREATE SOURCE n (n BIGINT) USING counter OPTIONS (every '50ms', keep '100')",
    "views/v.sql": "CREATE MATERIALIZED VIEW v AS SELECT n % 7 AS k, count(*) AS c FROM n GROUP BY n % 7",
}
TERM_SECONDS_MAX = 60


@pytest.mark.parametrize("first", ["the JVM", "run"])
def test_a_service_that_is_stopped_process_by_process_has_not_failed(place, first):
    """Damage: each deployment leaves a failed unit and `Connection refused`, and a supervisor starts it again."""
    place.write(PROJECT)
    process = place.start()
    try:
        assert "serving" in json.loads(process.stdout.readline())
        while (told := json.loads(process.stdout.readline()))["problems"] or told["waiting"]:
            pass  # on a busy machine the first tick does not wait for its source to the end
        others = [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
        assert others, "Spark's JVM is a process of its own"
        for pid in [process.pid, *others] if first == "run" else [*others, process.pid]:
            os.kill(pid, signal.SIGTERM)
        out, said = process.communicate(timeout=TERM_SECONDS_MAX)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, said
    assert "refused" not in said
    assert "refused" not in out
    assert place.run("status", "--json").documents[0]["holder"] is None, "it has let go of the location"
