"""The jars that Spark is started with beside its own: those of S3, of its Kafka connector, and what a project names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from strandline.cli.doctor.finding import Finding, missing, ok, wrong
from strandline.cli.doctor.servers import answers
from strandline.connections.addresses import of_url
from strandline.engine.session import kafka_jars
from strandline.errors import ConfigError

MAVEN: Final = "https://repo1.maven.org"
IVY_DEFAULT: Final = ".ivy2.5.2"
"""Where Spark 4.3 keeps what it has fetched, in the user's home."""
_PATHS: Final = frozenset({"", "file", "local"})


def jars(settings: Mapping[str, str], kafka: str | None) -> Iterator[Finding]:
    """Check the jars of Spark's ``settings``; ``kafka``: the project's ``kafka_jars``."""
    try:
        wanted = kafka_jars.jars(settings, kafka)
    except ConfigError as error:
        yield missing("jars", str(error), "put them there, or write `kafka_jars: maven`")
        return
    named = list(filter(None, wanted.get("spark.jars", "").split(",")))
    gone = [each for each in named if urlsplit(each).scheme in _PATHS and not Path(urlsplit(each).path).is_file()]
    if gone:
        yield missing("jars", f"{', '.join(gone)} of spark.jars are not there", "put them there, or correct the paths")
    elif named:
        yield ok("jars", f"{len(named)} of spark.jars")
    packages = list(filter(None, wanted.get("spark.jars.packages", "").split(",")))
    if packages:
        yield _packages(packages, wanted)


def _packages(packages: list[str], settings: Mapping[str, str]) -> Finding:
    kept = Path(settings.get("spark.jars.ivy", Path.home() / IVY_DEFAULT)) / "jars"
    absent = [
        each for each in packages if not (kept / f"{'_'.join(each.split(':')[:2])}-{each.split(':')[-1]}.jar").is_file()
    ]
    if not absent:
        return ok("jars", f"{len(packages)} packages of Maven, fetched before")
    for repository in filter(None, settings.get("spark.jars.repositories", MAVEN).split(",")):
        if not of_url(repository) or not all(answers(each) for each in of_url(repository)):
            return ok("jars", f"{len(absent)} packages of Maven, which Spark fetches when it first starts")
    act = f"let this machine reach {MAVEN}, or have the jars in a directory (kafka_jars, spark.jars)"
    return wrong("jars", f"{len(absent)} packages of Maven are not here, and Maven does not answer", act)
