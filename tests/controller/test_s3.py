"""An environment whose every byte is in a bucket: parts by Spark, states by conditional put; nothing else is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import obstore
import pytest

from s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server
from strandline.engine.session import s3a
from strandline.store.blob_kinds.object_location import ObjectLocation

pytestmark = pytest.mark.server

ROWS = 60_000
"""More than are ever collected by the driver: Spark's executors write them."""
CHILD = """
import json, sys
import pyarrow as pa
import strandline

endpoint, begin, rows, region = sys.argv[1], sys.argv[2] == "begin", int(sys.argv[3]), sys.argv[4]
secrets = {"access_key_id": "env:OUR_ID", "secret_access_key": "env:OUR_KEY"}
storage = {"endpoint": endpoint, "region": region, **secrets}
config = {"storage": storage, "spark": {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}}
with strandline.open("s3://strandline/end/to/end", config=config) as env:
    if begin:
        env.execute("CREATE TABLE items (id bigint, kind string)")
        env.execute("CREATE MATERIALIZED VIEW kinds AS SELECT kind, count(*) AS n FROM items GROUP BY kind")
        env.insert("items", pa.table({"id": range(rows), "kind": [f"k{i % 7}" for i in range(rows)]}))
    else:
        env.insert("items", [{"id": -1, "kind": "late"}])
        env.delete("items", [{"id": 0, "kind": "k0"}])
    env.tick()
    found = {row.kind: row.n for row in env.query("SELECT kind, n FROM kinds").collect()}
    found["verified"] = env.verify("kinds").ok
    print(json.dumps(found))
"""


def run(server: S3Server, phase: str) -> dict[str, object]:
    """Run one process of the environment and return what it found."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, server.endpoint, phase, str(ROWS), REGION],
        env={**environment, "OUR_ID": ACCESS_KEY_ID, "OUR_KEY": SECRET_ACCESS_KEY},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if "unresolved dependency" in done.stderr:
        pytest.skip(f"Spark cannot fetch {s3a.PACKAGES[0]} and what goes with it from a Maven repository")
    assert done.returncode == 0, done.stderr[-4000:]
    assert SECRET_ACCESS_KEY not in done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_environment_lives_in_a_bucket_alone(s3_server: S3Server) -> None:
    """Damage: on S3, a restart forgets; or a part lies on the disk of a machine that is gone."""
    counts = {f"k{n}": len(range(n, ROWS, 7)) for n in range(7)}
    assert run(s3_server, "begin") == {**counts, "verified": True}
    store = ObjectLocation(f"s3://{s3_server.bucket}/end/to/end", s3_server.storage).open(retries=0)
    sizes = {each["path"]: each["size"] for page in obstore.list(store) for each in page}
    parts = [key for key, size in sizes.items() if key.startswith("blob/") and key.endswith(".parquet") and size]
    assert len(parts) >= 2, "the executors wrote no parts"
    assert not [key for key in sizes if "__magic" in key or "_temporary" in key or "_SUCCESS" in key]
    assert [key for key in sizes if key.startswith("consensus/")]
    changed = {**counts, "k0": counts["k0"] - 1, "late": 1}
    assert run(s3_server, "again") == {**changed, "verified": True}
