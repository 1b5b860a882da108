"""The Dockerfile, read without Docker: what it copies is there, what it runs exists, and it runs as no root.

What it does to make and to install the wheel, `test_wheel.py` runs.
"""

from __future__ import annotations

import json
import re
import shlex
from fnmatch import fnmatch

import pytest
from typer.testing import CliRunner

from dockerfile import ROOT, command, commands, instructions, stages
from strandline.cli.app import app
from strandline.cli.doctor.machine import PYTHON_MIN
from strandline.cli.terminal.opening import Opener

BUILD, FINAL = stages()


def test_both_stages_have_one_python_that_is_new_enough() -> None:
    """Damage: wheels are compiled for another Python than the one that is to run them."""
    images = [stage[0].text.split()[0] for stage in (BUILD, FINAL)]
    assert images[0] == images[1]
    found = re.fullmatch(r"python:(\d+)\.(\d+)-slim-\w+", images[0])
    assert found is not None
    assert (int(found[1]), int(found[2])) >= PYTHON_MIN


@pytest.mark.parametrize("source", [s for each in BUILD if each.name == "COPY" for s in each.text.split()[:-1]])
def test_what_is_copied_is_there_and_is_let_through(source: str) -> None:
    """Damage: the first `docker build` of a release fails at a file that was renamed."""
    assert (ROOT / source).exists()
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert f"!{source}" in lines


def test_nothing_but_what_is_copied_is_sent_to_the_builder() -> None:
    """Damage: a build sends gigabytes of data, or the secrets of a project, into an image's cache."""
    copied = {s for each in (*BUILD, *FINAL) if each.name == "COPY" for s in each.text.split()[:-1]}
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    assert any(fnmatch("src/strandline/__pycache__", line) for line in lines)


def test_the_wheel_is_made_of_all_that_pyproject_names() -> None:
    """Damage: the build backend asks for a file that was not copied."""
    copied = {s for each in BUILD if each.name == "COPY" for s in each.text.split()[:-1]}
    text = (ROOT / "pyproject.toml").read_text()
    (licenses,) = re.findall(r"^license-files = (.*)$", text, re.MULTILINE)
    assert set(json.loads(licenses)) <= copied
    assert "readme =" not in text  # else it would have to be copied, too


def test_every_package_is_installed_by_its_hash() -> None:
    """Damage: a poisoned release comes into the image that a test never saw."""
    for each in commands(BUILD):
        if "pip" in shlex.split(each)[:3] and "-r" in shlex.split(each):
            assert "--require-hashes" in each
    assert "--no-index" in command(FINAL, "python -m pip install")


def test_the_image_has_the_versions_that_the_tests_ran_with() -> None:
    """Damage: what is deployed is another Spark, or another client, than the one that was tested."""
    pins = {name: _pins(ROOT / name) for name in ("requirements.lock", "requirements-image.lock")}
    assert pins["requirements-image.lock"] <= pins["requirements.lock"]
    assert not {pin for pin in pins["requirements-image.lock"] if pin.startswith(("pytest==", "moto=="))}
    assert {pin.partition("==")[0] for pin in pins["requirements-image.lock"]} >= {"pyspark", "psycopg", "obstore"}


def _pins(path) -> set[str]:
    return set(re.findall(r"^[a-z][\w.-]*==[\w.]+", path.read_text(), re.MULTILINE))


def test_the_image_has_the_java_that_setup_installs() -> None:
    """Damage: the image has a Java that lacks what the tests' Java has."""
    installed = command(FINAL, "apt-get install").split()
    jdk = [each for each in installed if each.startswith("openjdk")]
    assert jdk
    assert jdk[0] in (ROOT / "tools" / "setup").read_text()


def test_it_runs_as_no_root_and_its_user_can_write_the_project() -> None:
    """Damage: who gets out of the program is root; or a project cannot be kept in the volume."""
    names = [each.name for each in FINAL]
    user = next(each.text for each in FINAL if each.name == "USER")
    assert user not in {"root", "0"}
    assert command(FINAL, "useradd").endswith(f" {user}")
    assert command(FINAL, "install -d").split()[2:] == ["-o", user, "/project"]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "USER" not in names[names.index("USER") + 1 :]


def test_what_it_runs_are_commands_with_these_options() -> None:
    """Damage: a renamed command is found by a container that does not start."""
    (entry,) = [json.loads(each.text) for each in FINAL if each.name == "ENTRYPOINT"]
    (default,) = [json.loads(each.text) for each in FINAL if each.name == "CMD"]
    assert entry[0] == "tini"
    assert entry[1:] == ["--", "strandline"]
    assert "tini" in command(FINAL, "apt-get install").split()
    ran = [shlex.split(each)[1:] for each in commands(FINAL) if each.startswith("strandline ")]
    assert [each[0] for each in ran] == ["warm", "doctor"]
    for name, *arguments in (*ran, default):
        shown = CliRunner().invoke(app, [name, "--help"], obj=Opener())
        assert shown.exit_code == 0
        assert [option for option in arguments if option.startswith("--") and option not in shown.output] == []


def test_it_is_checked_by_the_user_that_will_run_it() -> None:
    """Damage: what only root can read is missed by the check, and missing when it runs."""
    after = FINAL[[each.name for each in FINAL].index("USER") :]
    assert commands(after) == ["strandline doctor"]


def test_a_continued_instruction_is_one() -> None:
    """Damage: these tests would see half of a command, and pass."""
    (found,) = instructions("RUN a \\\n# why\n  && b\n")
    assert commands([found]) == ["a", "b"]
