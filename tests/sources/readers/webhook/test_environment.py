"""The whole way of a request, and of a small file, in an environment on Spark."""

from __future__ import annotations

import json
import socket
import urllib.request

import pytest

import strandline
from strandline.errors import CollectionError

pytestmark = pytest.mark.spark


def send(port, body, **headers):
    """Send a body; return the answer."""
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/pay", body, given)) as answer:
        return json.load(answer)


def test_what_is_sent_is_in_a_view_after_a_tick(spark):
    """Damage: the parts work and the whole does not."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with strandline.open("memory://", spark=spark) as env:
        env.execute(
            f"CREATE SOURCE pay (id BIGINT, amount DECIMAL(10, 2), o BIGINT) USING webhook OPTIONS "
            f"(listen '127.0.0.1:{port}', path '/pay', include_offset 'o')"
        )
        env.execute("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(amount) AS amount FROM pay")
        env.tick()
        body = b'[{"id": 1, "amount": "9.50"}, {"id": 2, "amount": 3}]'
        assert send(port, body, Idempotency_Key="k") == {"offset": 0, "messages": 2}
        assert send(port, body, Idempotency_Key="k") == {"offset": 0, "messages": 2, "again": True}
        env.tick()
        rows = env.query("SELECT id, amount, o FROM pay ORDER BY id").collect()
        assert [(row.id, str(row.amount), row.o) for row in rows] == [(1, "9.50", 0), (2, "3.00", 1)]
        assert send(port, b'[{"id": "x"}]') == {"offset": 2, "messages": 1}
        env.tick()
        with pytest.raises(CollectionError, match=r"/pay\[0\]@2: column `id`: 'x' is not a valid bigint"):
            env.query("SELECT id FROM pay")
        env.execute("DROP MATERIALIZED VIEW total")
        env.execute("DROP SOURCE pay")
        with pytest.raises(OSError, match="refused"):
            send(port, body)


def test_a_tick_with_one_small_file_runs_no_job(spark, tmp_path):
    """Damage: a new file of ten lines waits for Spark jobs at each tick."""
    jobs = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    with strandline.open("memory://", spark=spark) as env:
        for kind in ("json", "csv"):
            (tmp_path / kind).mkdir()
            options = f"path '{tmp_path / kind}/*.{kind}', settle '0'"
            env.execute(f"CREATE SOURCE s_{kind} (id BIGINT, v STRING) USING files OPTIONS ({options})")
        taken = []
        for number in range(5):
            (tmp_path / f"json/{number}.json").write_text(f'{{"id": {number}, "v": "a"}}\n' * 10)
            (tmp_path / f"csv/{number}.csv").write_text("id,v\n" + f"{number},a\n" * 10)
            before = jobs()
            env.tick()
            taken.append(jobs() - before)
        assert taken[-2:] == [0, 0], taken
        for kind in ("json", "csv"):
            assert env.query(f"SELECT count(*) FROM s_{kind}").collect()[0][0] == 50
