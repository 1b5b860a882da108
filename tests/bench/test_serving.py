"""`bench serving` counts what was acknowledged, beside clients that die and misbehave, and programs of others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kafka_server
from strandline.bench.served.serving import Other, measure_serving
from strandline.serving import Door
from strandline.store.secret import Secret

pytestmark = pytest.mark.spark

TOKEN = "a-token-that-is-not-shown"
SECONDS = 300
GOALS_MS = {"inserts_p50": 50, "asks_p50": 150, "peeks_p50": 10}
HERE = Path(__file__).parent / "served"
OPENED = "--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED"
MEMORY = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def jdbc(places: Sequence[str], number: int) -> Sequence[str]:
    """A Java program with the published driver, at the address."""
    url = f"jdbc:arrow-flight-sql://{places[1].rpartition('/')[2]}/?useEncryption=false&token={TOKEN}"
    jars = f"{kafka_server.jars('flight-sql-jdbc')}/*"
    return [*kafka_server.java(), *MEMORY, OPENED, "-cp", jars, str(HERE / "Load.java"), url, str(number)]


def adbc(places: Sequence[str], number: int) -> Sequence[str]:
    """A Python program with the published driver, at the socket."""
    return [sys.executable, str(HERE / "by_adbc.py"), places[0], str(number)]


def shell(project: Path) -> Other:
    """Someone who types into the shell, at a project."""

    def command(_: Sequence[str], number: int) -> Sequence[str]:
        return [sys.executable, "-m", "tests.bench.served.by_shell", str(project), str(number)]

    return command


def test_what_clients_were_told_is_there_whatever_the_others_do(spark: Any, tmp_path: Path) -> None:
    """Damage: a client that is killed, stalls or sends garbage costs another one its rows."""
    found = measure_serving(spark, tmp_path / "location", seconds=16, others={"adbc": adbc})
    assert (found["wrong"], found["failed"]) == (0, 0), found
    assert found["rows"] > 0, found


@pytest.mark.slow
def test_five_minutes_with_every_kind_of_client(
    spark: Any, tmp_path: Path, record_property: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: rows get lost or doubled, or readers wait, once several programs use an environment for some minutes."""
    if kafka_server.jars("flight-sql-jdbc") is None:
        pytest.skip("the JDBC driver of Flight SQL is not here (`tools/setup --servers` fetches it)")
    location, project = tmp_path / "location", tmp_path / "project"
    project.mkdir()
    (project / "strandline.yml").write_text(f"location: {location}\n")
    monkeypatch.chdir(Path(__file__).parents[2])
    others = {"adbc": adbc, "jdbc": jdbc, "shell": shell(project)}
    door = Door("127.0.0.1:0", Secret(TOKEN))
    found = measure_serving(spark, location, seconds=SECONDS, door=door, others=others)
    for name, value in found.items():
        record_property("FIGURE", f"serving_{name} {value} {GOALS_MS.get(name.removesuffix('_ms'), '')} info")
    assert (found["wrong"], found["failed"]) == (0, 0), found
    assert found["rows"] > SECONDS, found
