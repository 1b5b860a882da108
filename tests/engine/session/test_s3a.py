"""Spark is configured for one bucket, and loads the jars that fit it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from strandline.engine.session import s3a
from strandline.engine.session.start import adopt
from strandline.errors import ConfigError
from strandline.store.blob_kinds.object_location import ObjectLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_jars_fit_the_hadoop_that_spark_bundles() -> None:
    """Damage: after Spark is raised, S3 fails with a missing method at the first read."""
    bundled = Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{s3a.HADOOP}.jar"
    assert bundled.exists()


def test_a_session_with_its_own_jars_gets_no_others() -> None:
    """Damage: a cluster without a way to Maven cannot start, though it has all it needs."""
    for name in s3a.JARS:
        assert s3a.jars({name: "mine"}) == {name: "mine"}
    ours = s3a.jars({"spark.master": "local[1]"})
    assert ours["spark.master"] == "local[1]"
    assert "software.amazon.awssdk:bundle" in ours["spark.jars.excludes"]


def test_only_the_locations_bucket_is_configured() -> None:
    """Damage: our credentials are sent to another owner's bucket, or theirs to ours."""
    options = {"endpoint": "http://127.0.0.1:9", "access_key_id": "id", "secret_access_key": "key"}
    settings = s3a.bucket_settings(ObjectLocation("s3://bucket/p", options))
    assert all(name.startswith("fs.s3a.bucket.bucket.") for name in settings)
    assert settings["fs.s3a.bucket.bucket.secret.key"] == "key"
    assert settings["fs.s3a.bucket.bucket.path.style.access"] == "true"
    assert "fs.s3a.bucket.bucket.path.style.access" not in s3a.bucket_settings(ObjectLocation("s3://bucket", {}))


def test_nothing_is_replaced_in_an_option() -> None:
    """Damage: CREATE SOURCE sends the environment of this process to the server that it names as the endpoint."""
    for name in ("endpoint", "access_key_id", "secret_access_key"):
        with pytest.raises(ConfigError, match=f"the option {name} of s3://bucket") as refused:
            s3a.bucket_settings(ObjectLocation("s3://bucket", {name: "http://x/${env.HOME}"}))
        assert "HOME" not in str(refused.value)


@pytest.mark.spark
def test_a_session_without_s3a_is_refused_with_the_jars_that_it_needs(spark: SparkSession) -> None:
    """Damage: opening a bucket beside a session of one's own ends in the name of an unknown Java class."""
    with pytest.raises(ConfigError, match="org.apache.hadoop:hadoop-aws"):
        s3a.prepare(adopt(spark), ObjectLocation("s3://bucket/p", {}))
