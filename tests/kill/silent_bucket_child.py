"""Jobs over a bucket whose server is stopped: prints how long each waits, as JSON.

python silent_bucket_child.py ENDPOINT PID
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY
from strandline.engine.frames.failures import as_ours
from strandline.engine.session import s3a
from strandline.engine.session.start import build
from strandline.errors import Unavailable
from strandline.store.blob_kinds.object_location import ObjectLocation

LAZY_S, AWAKE_S = 8.0, 1.0
"""How long a slow server says nothing, and how long it answers then."""


def main(endpoint: str, pid: int) -> None:
    """Run the jobs."""
    storage = {"endpoint": endpoint, "region": REGION, "access_key_id": ACCESS_KEY_ID}
    location = ObjectLocation("s3://strandline/silent", {**storage, "secret_access_key": SECRET_ACCESS_KEY})
    spark = build(s3a.jars({"spark.master": "local[2]"}))
    s3a.prepare(spark, location)
    root = s3a.root(location)
    small, large = spark.range(1000), spark.range(2_000_000).selectExpr("id", "uuid() AS u").repartition(1)

    def seconds(job: Callable[[], object], *, fails: bool) -> float:
        begun, failed = time.monotonic(), False
        try:
            job()
        except Exception as error:
            failed = type(as_ours(error)) is Unavailable
            if not failed:
                raise
        assert failed == fails, "a job over a silent bucket has an answer, or one over a slow bucket has none"
        took = round(time.monotonic() - begun, 1)
        sys.stderr.write(f"{took} s\n")
        return took

    def stop_within(wait_s: float) -> None:
        threading.Timer(wait_s, lambda: os.kill(pid, signal.SIGSTOP)).start()

    found = {"well": seconds(lambda: (small.write.parquet(f"{root}/a"), large.write.parquet(f"{root}/b")), fails=False)}
    planned = spark.read.parquet(f"{root}/a")
    os.kill(pid, signal.SIGSTOP)
    found["read"] = seconds(planned.collect, fails=True)
    found["write"] = seconds(lambda: small.write.parquet(f"{root}/c"), fails=True)
    os.kill(pid, signal.SIGCONT)
    stop_within(min(3.0, found["well"] / 2))
    found["upload"] = seconds(lambda: large.write.parquet(f"{root}/d"), fails=True)
    os.kill(pid, signal.SIGCONT)
    ended = threading.Event()

    def doze() -> None:
        while not ended.wait(AWAKE_S):
            os.kill(pid, signal.SIGSTOP)
            ended.wait(LAZY_S)
            os.kill(pid, signal.SIGCONT)

    dozing = threading.Thread(target=doze)  # noqa: TID251 - the test is a slow server
    dozing.start()
    found["slow"] = seconds(lambda: large.write.parquet(f"{root}/e"), fails=False)
    ended.set()
    dozing.join()
    found["rows"] = spark.read.parquet(f"{root}/e").count()
    spark.stop()
    print(json.dumps(found))  # noqa: T201 - this is the answer


main(sys.argv[1], int(sys.argv[2]))
