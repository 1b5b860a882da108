"""Spark's Kafka connector: where its jars come from, if it is wanted.

Spark's own distribution has no Kafka connector.  It is published beside it, of each release but the newest ones: that
of 4.2 works with Spark 4.3.  Its jars are fetched from Maven when the JVM starts, or lie in a directory; a cluster
brings its own, and so does a session that is given.

Source: https://spark.apache.org/docs/latest/structured-streaming-kafka-integration.html (deploying).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from strandline.errors import ConfigError

MAVEN: Final = "maven"
CONNECTOR: Final = "4.2.0"
"""The newest that is published (Spark 4.3's is not)."""
CLIENT: Final = "3.9.2"
"""The client that the connector is built with."""
PACKAGES: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{CONNECTOR}",
    f"org.apache.kafka:kafka-clients:{CLIENT}",
    "org.apache.commons:commons-pool2:2.13.1",
)
EXCLUDED: Final = (
    # what Spark has itself, at its own versions
    "org.apache.hadoop:*",
    "org.apache.spark:spark-tags_2.13",
    "com.github.luben:*",
    "org.lz4:*",
    "at.yawk.lz4:*",
    "org.xerial.snappy:*",
    "org.scala-lang:*",
    "org.scala-lang.modules:*",
    "org.slf4j:*",
    "com.google.code.findbugs:*",
)
_JARS: Final = "spark.jars"
_PACKAGES: Final = "spark.jars.packages"
_EXCLUDES: Final = "spark.jars.excludes"


def jars(config: Mapping[str, str], source: str | None) -> dict[str, str]:
    """Return ``config`` with what gives a new JVM the connector: from ``source``, `MAVEN` or a directory; None: not.

    >>> jars({"spark.jars.packages": "a:b:1"}, None)
    {'spark.jars.packages': 'a:b:1'}

    Raises `ConfigError` if the directory has no jar.
    """
    if source is None:
        return dict(config)
    if source == MAVEN:
        return {**config, **_added(config, _PACKAGES, PACKAGES), **_added(config, _EXCLUDES, EXCLUDED)}
    found = sorted(str(path.absolute()) for path in Path(source).glob("*.jar"))
    if not found:
        raise ConfigError(f"kafka_jars is {source!r}: it is {MAVEN!r}, or a directory that has the connector's jars")
    return {**config, **_added(config, _JARS, found)}


def _added(config: Mapping[str, str], name: str, more: Sequence[str]) -> dict[str, str]:
    return {name: ",".join([*filter(None, [config.get(name)]), *more])}
