"""`strandline warm`: Spark starts from an archive of classes, and nothing but time shows whether it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.engine import class_archive
from strandline.errors import ConfigError

JAVA = "/no/such/java"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """A Python environment without an archive; where the archive of a certain Java would be."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "an env"))
    return class_archive.place(JAVA)


def test_without_an_archive_the_options_are_as_they_were(elsewhere):
    """A JVM told of a file that is not there would warn on every start."""
    assert class_archive.options(JAVA, "-Xss1m") == "-Xss1m"
    assert class_archive.options(None, "") == ""


def test_with_an_archive_java_is_told_of_it_and_asked_to_be_silent(elsewhere):
    """An archive that is there and not used, or that complains into a program's standard output."""
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    assert class_archive.options(JAVA, "-Xss1m") == f"'-XX:SharedArchiveFile={elsewhere}' -Xlog:cds*=off -Xss1m"


@pytest.mark.parametrize(
    "given", ["-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa"]
)
def test_who_speaks_of_archives_knows_better(elsewhere, given):
    """An operator's own archive would be replaced by ours."""
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    assert class_archive.options(JAVA, given) == given


def test_an_upgraded_java_has_no_archive_yet(tmp_path, monkeypatch):
    """Java keeps its path when it is upgraded; the old archive would be offered to it for ever, in vain."""
    java, modules = tmp_path / "jdk" / "bin" / "java", tmp_path / "jdk" / "lib" / "modules"
    for file in (java, modules):
        file.parent.mkdir(parents=True)
        file.touch()
    before = class_archive.place(str(java))
    os.utime(modules, (1, 1))
    assert class_archive.place(str(java)) != before


def test_an_environment_that_cannot_be_written_is_told_as_one_sentence(tmp_path, monkeypatch):
    """A system-wide installation would answer with a traceback."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "file"))
    with (
        pytest.raises(ConfigError, match="the class archive cannot be kept in"),
        class_archive.recording(class_archive.place(JAVA)),
    ):
        pytest.fail("nothing is recorded")


@pytest.mark.spark
def test_what_is_warm_stays_warm_and_an_archive_of_anything_else_changes_nothing(tmp_path):
    """A torn or foreign archive would stop Spark from starting, or print into what a program reads."""
    run = "import sys; sys.prefix = sys.argv[1]\nfrom strandline.cli import main\nsys.exit(main(sys.argv[2:]))"

    def strandline(*arguments: str) -> dict:
        command = [sys.executable, "-c", run, str(tmp_path), *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        return json.loads(done.stdout)

    made = strandline("warm")
    archive = Path(made["archive"])
    assert made["made"] is True
    assert archive.is_file()
    assert made["bytes"] == archive.stat().st_size > 10 << 20
    assert list(archive.parent.iterdir()) == [archive]
    assert strandline("warm")["made"] is False

    project = tmp_path / "project"
    strandline("init", str(project))
    for damage in (lambda data: data, lambda data: data[: len(data) // 2], lambda _: b"no archive"):
        data = damage(archive.read_bytes())
        archive.unlink()
        archive.write_bytes(data)
        assert strandline("query", "SELECT 1 AS one", "--project", str(project))["rows"] == [{"one": 1}]
