"""`strandline warm`: Spark starts from an archive of classes, and nothing but time shows whether it did."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.engine.session import class_archive
from strandline.engine.session.start import java_path
from strandline.errors import ConfigError

JAVA = "/no/such/java"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """A Python environment without an archive; where the archive of a certain Java would be."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "an env"))
    return class_archive.place(JAVA)


def test_without_an_archive_the_options_are_as_they_were(elsewhere):
    """Damage: a JVM with a missing archive file warns at every start."""
    assert class_archive.options(JAVA, "-Xss1m") == "-Xss1m"
    assert class_archive.options(None, "") == ""


def keep(archive: Path, content: bytes, size: int | None = None) -> None:
    """Put an archive, and what is said of its size, where they are looked for."""
    archive.parent.mkdir(parents=True)
    archive.write_bytes(content)
    archive.with_suffix(".size").write_text(str(len(content) if size is None else size))


def test_with_an_archive_java_gets_its_path_and_prints_nothing(elsewhere):
    """An archive that is there and not used, or that complains into a program's standard output."""
    keep(elsewhere, b"classes")
    assert class_archive.options(JAVA, "-Xss1m") == f"'-XX:SharedArchiveFile={elsewhere}' -Xlog:cds*=off -Xss1m"


@pytest.mark.parametrize(
    "given", ["-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa"]
)
def test_who_speaks_of_archives_knows_better(elsewhere, given):
    """An operator's own archive would be replaced by ours."""
    keep(elsewhere, b"classes")
    assert class_archive.options(JAVA, given) == given


def test_an_archive_that_was_cut_off_is_not_used(elsewhere):
    """A JVM maps the whole archive, and dies with a signal where its bytes end; it would at every start."""
    keep(elsewhere, b"class", size=len(b"classes"))
    assert class_archive.options(JAVA, "") == ""
    elsewhere.with_suffix(".size").unlink()
    assert class_archive.options(JAVA, "") == ""


def test_an_upgraded_java_has_no_archive_yet(tmp_path, monkeypatch):
    """Java keeps its path when it is upgraded; the old archive would be offered to it for ever, in vain."""
    java, modules = tmp_path / "jdk" / "bin" / "java", tmp_path / "jdk" / "lib" / "modules"
    for file in (java, modules):
        file.parent.mkdir(parents=True)
        file.touch()
    before = class_archive.place(str(java))
    os.utime(modules, (1, 1))
    assert class_archive.place(str(java)) != before


def test_an_environment_that_cannot_be_written_is_reported_in_one_sentence(tmp_path, monkeypatch):
    """A system-wide installation would answer with a traceback."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "file"))
    with (
        pytest.raises(ConfigError, match="the class archive cannot be kept in"),
        class_archive.recording(class_archive.place(JAVA)),
    ):
        pytest.fail("nothing is recorded")


@pytest.mark.parametrize("content", [b"", b"no archive", bytes(1 << 16)], ids=["empty", "foreign", "zeros"])
def test_java_starts_with_a_damaged_archive_and_says_nothing_of_it(elsewhere, content):
    """A torn file would stop Spark from starting, or print into what a program reads."""
    java = java_path(os.environ)
    if java is None:
        pytest.skip("there is no Java on the path")
    archive = class_archive.place(java)
    keep(archive, content)
    command = [java, *shlex.split(class_archive.options(java, "")), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "archive" not in done.stderr


@pytest.mark.slow
def test_what_is_warm_is_not_warmed_again_and_runs(tmp_path):
    """Every installation would wait, or the archive that was made would not be the one that is looked for."""
    run = "import sys; sys.prefix = sys.argv[1]\nfrom strandline.cli import main\nsys.exit(main(sys.argv[2:]))"

    def strandline(*arguments: str) -> str:
        command = [sys.executable, "-c", run, str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout

    made = json.loads(strandline("warm", "--json"))
    archive = Path(made["archive"])
    assert made["made"] is True
    assert made["bytes"] == archive.stat().st_size > 10 << 20
    assert set(archive.parent.iterdir()) == {archive, archive.with_suffix(".size")}
    assert json.loads(strandline("warm", "--json"))["made"] is False
    strandline("init", str(tmp_path / "project"))
    strandline("run", "--once", "--project", str(tmp_path / "project"))
