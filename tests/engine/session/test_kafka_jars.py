"""Spark gets its Kafka connector where the configuration says, beside whatever else it is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from strandline.controller.location import config
from strandline.engine.session import kafka_jars, s3a
from strandline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def fetched() -> Iterator[str]:
    """Yield the packages that the tests' connector is made of."""
    for each in ET.parse(ROOT / "tools" / "jars" / "ivy.xml").getroot().iter("dependency"):
        if each.get("conf", "").startswith("kafka-connector"):
            yield f"{each.get('org')}:{each.get('name')}:{each.get('rev')}"


def test_what_maven_gives_is_what_was_tested() -> None:
    """Damage: users get versions that no test has seen."""
    assert tuple(fetched()) == kafka_jars.PACKAGES
    assert config.FROM_MAVEN == kafka_jars.MAVEN


def test_the_connector_comes_beside_the_jars_that_reach_a_bucket() -> None:
    """Damage: a location in S3 cannot be opened once there is a Kafka source."""
    both = kafka_jars.jars(s3a.jars({"spark.master": "local[1]"}), kafka_jars.MAVEN)
    assert {*s3a.PACKAGES, *kafka_jars.PACKAGES} == {*both["spark.jars.packages"].split(",")}
    assert {*s3a.EXCLUDED, *kafka_jars.EXCLUDED} == {*both["spark.jars.excludes"].split(",")}
    assert both["spark.master"] == "local[1]"


def test_jars_of_a_directory_come_beside_those_that_are_configured(tmp_path: Path) -> None:
    """Damage: the jars of a user's own functions are gone."""
    (tmp_path / "b.jar").touch()
    (tmp_path / "a.jar").touch()
    given = kafka_jars.jars({"spark.jars": "/mine.jar"}, str(tmp_path))
    assert given["spark.jars"] == f"/mine.jar,{tmp_path}/a.jar,{tmp_path}/b.jar"
    with pytest.raises(ConfigError, match=r"kafka_jars is '.*/none': it is 'maven', or a directory"):
        kafka_jars.jars({}, str(tmp_path / "none"))
