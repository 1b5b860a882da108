"""The JDBC driver of Flight SQL, from its published jar, reads and writes; so do the tools that speak JDBC."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.serving.conftest import SECRET

import kafka_server
import strandline
from strandline.serving import Serving

pytestmark = pytest.mark.spark

WANTED = """\
Strandline
jdbc TABLE
jdbc_view VIEW
inserted 2
inserted 1
updated 2
deleted 1
it's 13
b 12
it's 13
"""


def test_a_program_reads_and_writes_by_jdbc(served: Serving) -> None:
    """Damage: the driver, which asks for a result where it got no count, runs each statement twice."""
    jars = kafka_server.jars("flight-sql-jdbc")
    if jars is None:
        pytest.skip("the JDBC driver of Flight SQL is not here (`tools/setup --servers` fetches it)")
    socket, address = served.flight_sql
    with strandline.connect(socket) as env:
        env.execute("CREATE TABLE jdbc (city STRING, n INT)")
        env.execute("CREATE MATERIALIZED VIEW jdbc_view AS SELECT city, n FROM jdbc WHERE n > 0")
    url = f"jdbc:arrow-flight-sql://{address.rpartition('/')[2]}/?useEncryption=false&token={SECRET}"
    opened = "--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED"
    source = Path(__file__).with_name("Client.java")
    ran = subprocess.run(
        [*kafka_server.java(), opened, "-cp", f"{jars}/*", str(source), url],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    facts, _, error = ran.stdout.rstrip().rpartition("\n")
    assert f"{facts}\n" == WANTED
    assert "unknown column nope; there is city, n (at line 1, column 8)" in error
