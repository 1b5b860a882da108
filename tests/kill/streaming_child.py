"""A Spark application that follows a collection into files, until it is killed or, with ``once``, has all there is.

streaming_child.py LOCATION COLLECTION DIRECTORY follow|once
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import strandline


def main(location: str, collection: str, directory: str, how: str) -> None:
    """Follow it."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "512m").getOrCreate()
    strandline.register(spark)
    frame = spark.readStream.format("strandline").options(location=location, collection=collection).load()
    writer = frame.writeStream.format("json").option("checkpointLocation", f"{directory}/checkpoint")
    writer = writer.option("path", f"{directory}/rows")
    writer = writer.trigger(availableNow=True) if how == "once" else writer.trigger(processingTime="200 milliseconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
