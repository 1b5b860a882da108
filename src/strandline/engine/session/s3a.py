"""Spark on S3: the jars that reach it, and their settings for one bucket.

Spark's own distribution has no S3 client.  Hadoop's (S3A) wants the whole AWS SDK as one jar of 686 MB; the modules
that S3A really uses are 11 MB.  Spark takes them from Maven when its JVM starts, unless its configuration already says
where jars come from (``spark.jars``, ``spark.jars.packages``): a cluster brings its own.

All that is set is set for one bucket, in a session of our own: whatever else Spark reads from S3 is not touched.

Source: https://hadoop.apache.org/docs/stable/hadoop-aws/tools/hadoop-aws/index.html (per-bucket configuration, magic
committer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlparse

from pyspark.errors import PySparkException

from strandline.errors import ConfigError
from strandline.store.blob_kinds.object_location import REQUEST_SECONDS_MAX, ObjectLocation
from strandline.store.secret import revealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HADOOP: Final = "3.5.0"
"""What this Spark bundles (a test compares)."""
AWS_SDK: Final = "2.35.4"
"""What that Hadoop is built with."""
CLOUD: Final = "4.1.1"
"""The newest release of Spark's glue to Hadoop's committers: two classes, the same in 4.3."""

PACKAGES: Final = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    f"org.apache.spark:spark-hadoop-cloud_2.13:{CLOUD}",
    *(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in ("s3-transfer-manager", "sts")),
    *(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in ("apache-client", "netty-nio-client")),
)
EXCLUDED: Final = (
    "software.amazon.awssdk:bundle",  # everything that AWS has
    "org.apache.hadoop:hadoop-azure",  # other clouds
    "org.apache.hadoop:hadoop-azure-datalake",
    "org.apache.hadoop:hadoop-cloud-storage",
    "org.apache.hadoop:hadoop-huaweicloud",
    "com.google.cloud:*",
    "com.google.cloud.bigdataoss:*",
    "org.wildfly.openssl:*",  # a faster TLS, where it fits the machine
    "org.apache.hadoop:hadoop-client-api",  # what Spark has itself, at other versions
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.spark:spark-core_2.13",
    "org.apache.spark:spark-tags_2.13",
    "org.scala-lang:*",
    "org.scala-lang.modules:*",
    "org.spark-project.spark:unused",
    "org.slf4j:*",
    "org.apache.httpcomponents:*",
    "org.eclipse.jetty:*",
    "commons-logging:*",
    "commons-codec:*",
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.dataformat:*",
    "com.google.guava:*",
    "io.netty:*",
    "javax.xml.bind:*",
    "joda-time:*",
)
JARS: Final = ("spark.jars", "spark.jars.packages")
_SESSION: Final = {
    # Uploads become visible at the job's commit, below their own names: nothing is renamed, which S3 cannot do.
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
    "fs.s3a.committer.name": "magic",
}
_OPTIONS: Final = {
    "endpoint": "endpoint",
    "region": "endpoint.region",
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
}
"""Strandline's name of an option → S3A's."""
S3A_CLASS: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
SILENT_SECONDS_MAX: Final = 15
"""After so long without an answer S3A gives up one try; it takes no shorter time than this."""
TRIES: Final = 2
"""How often S3A makes a call: what broke in the middle of a read is opened once more."""
UPLOAD_SECONDS_MAX: Final = REQUEST_SECONDS_MAX // TRIES
PIECE_MIB: Final = 8
"""What one call uploads, so that a line of 280 kB/s has the time for it (S3A's own pieces are of 64 MiB)."""
_PATIENCE: Final = {
    # No call of a job takes longer than one of persist's, whose patience is a minute.  By default S3A tries eight times
    # for a minute, and to upload for a quarter of an hour.  What a job could not do the next tick does.
    "connection.establish.timeout": f"{SILENT_SECONDS_MAX}s",
    "connection.acquisition.timeout": f"{REQUEST_SECONDS_MAX}s",  # until one of our own calls has ended
    "connection.timeout": f"{SILENT_SECONDS_MAX}s",  # silence, also in the middle of what is read
    "connection.request.timeout": f"{SILENT_SECONDS_MAX}s",  # all but uploads, until the answer begins
    "connection.part.upload.timeout": f"{UPLOAD_SECONDS_MAX}s",
    "multipart.size": f"{PIECE_MIB}M",
    "attempts.maximum": "5",  # by the SDK within these times, where a call fails before
    "retry.limit": str(TRIES - 1),
    "retry.interval": "500ms",
    # A store that asks for less is asked again after pauses that double, for less than a minute in all (by default: for
    # a day).
    "retry.throttle.limit": "8",
    "retry.throttle.interval": "100ms",
}
assert SILENT_SECONDS_MAX <= UPLOAD_SECONDS_MAX


def root(location: ObjectLocation) -> str:
    """Return the location as Spark names it.

    >>> root(ObjectLocation("s3://bucket/a/b/", {}))
    's3a://bucket/a/b'
    """
    return "s3a" + location.url.removeprefix("s3").rstrip("/")


def jars(config: Mapping[str, str]) -> dict[str, str]:
    """Return ``config`` with what makes a new JVM fetch S3A, unless it says itself where jars come from."""
    if any(name in config for name in JARS):
        return dict(config)
    return {**config, "spark.jars.packages": ",".join(PACKAGES), "spark.jars.excludes": ",".join(EXCLUDED)}


def prepare(session: SparkSession, location: ObjectLocation) -> None:
    """Configure a session of our own to reach the location's bucket.

    Raises `ConfigError` if it lives in an application without S3A: jars come when a JVM starts, and not later.
    """
    try:
        for name, value in {**_SESSION, **bucket_settings(location)}.items():
            session.conf.set(name, value)
    except PySparkException as error:
        raise ConfigError(
            f"the Spark application that was given cannot reach {location.url}: it has no S3A; start it with "
            f"spark.jars.packages={','.join(PACKAGES)}, or let Strandline start its own"
        ) from error


def reach(session: SparkSession, location: ObjectLocation) -> None:
    """Configure a session to read from another bucket than the location's own, whose writes are left as they are.

    Raises `ConfigError` if its application has no S3A, or reaches the bucket with other options.
    """
    wanted = bucket_settings(location)
    there = {name: known for name in wanted if (known := session.conf.get(name, None)) is not None}
    if any(wanted[name] != value for name, value in there.items()):
        raise ConfigError(
            f"{location.url}: this process reaches that bucket with other options; let both have the same"
        )
    try:
        for name, value in wanted.items():
            session.conf.set(name, value)
        jvm: Any = session._jvm  # noqa: SLF001 - PySpark has no name for what is on the class path
        jvm.java.lang.Class.forName(S3A_CLASS, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Exception as error:  # PySpark's, or py4j's of a class that is not there
        raise ConfigError(
            f"Spark cannot read {location.url}: it has no S3A; start it with "
            f"spark.jars.packages={','.join(PACKAGES)} in the configuration's `spark`"
        ) from error


def bucket_settings(location: ObjectLocation) -> dict[str, str]:
    """Return S3A's settings for the location's bucket alone.

    Raises `ConfigError` for an option with ``${``: Hadoop would put an environment variable or a property in its place,
    and show it to the server that the options name.
    """
    options = revealed(location.options)
    known = {theirs: options[ours] for ours, theirs in _OPTIONS.items() if ours in options}
    for ours in _OPTIONS:
        if "${" in options.get(ours, ""):
            raise ConfigError(f"the option {ours} of {location.url} has ${{ in it, which Hadoop would replace")
    known["input.stream.type"] = "classic"  # the others want a second client with a native library
    known |= _PATIENCE
    if "endpoint" in known:
        known["path.style.access"] = "true"  # a server of one's own has no host name for each bucket
    return {f"fs.s3a.bucket.{urlparse(location.url).netloc}.{name}": value for name, value in known.items()}
