"""A Spark application of its own, which reads a collection: asked on a line, it answers with rows.

    reading_child.py MASTER LOCATION COLLECTION

A line is a time, at which the collection is read; or ``load``: at the newest; or ``again``: the last frame once more.
``MASTER``: a master of Spark's, or ``connect`` for a Connect session with a server of this process's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import strandline


def session(master: str) -> SparkSession:
    """Return a session; executors of a cluster of their own processes import what this process imports."""
    if master == "connect":
        found: SparkSession = SparkSession.builder.remote("local").getOrCreate()
        return found
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    return builder.config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path)).getOrCreate()


def main(master: str, location: str, collection: str) -> None:
    """Answer until the caller closes."""
    spark = session(master)
    strandline.register(spark)
    where = {"location": location, "collection": collection}
    for line in sys.stdin:
        asked = line.strip()
        if asked != "again":
            at = {} if asked == "load" else {"asOf": asked}
            frame = spark.read.format("strandline").options(**where, **at).load()
        sys.stdout.write(json.dumps(sorted(list(row) for row in frame.collect())) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
