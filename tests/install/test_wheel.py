"""The wheel in an environment of its own, far from the checkout: what the README shows, and a project, run.

The wheel is made and installed by the Dockerfile's own commands.  What else it needs is not fetched: the environment
sees the packages that this one has, by links, but not Strandline.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockerfile import ROOT, WHEELS, command, stages

pytestmark = [pytest.mark.demo, pytest.mark.time_limit(600)]

PACKAGES = Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as the image makes it."""
    directory = tmp_path_factory.mktemp("wheels")
    made = command(stages()[0], "python -m pip wheel .")
    _run([sys.executable, *_here(made, directory)[1:]], cwd=ROOT)
    (found,) = directory.iterdir()
    return found


class Elsewhere:
    """An environment with the wheel, and a directory that knows nothing of the checkout."""

    def __init__(self, home: Path, wheel: Path) -> None:
        self._home = home / "venv"
        self.cwd = home / "cwd"
        self.cwd.mkdir()
        venv.EnvBuilder(symlinks=True).create(self._home)
        self.python = self._home / "bin" / "python"
        own = Path(self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        links = home / "packages"
        links.mkdir()
        for each in PACKAGES.iterdir():
            if "strandline" not in each.name and each.suffix != ".pth":
                (links / each.name).symlink_to(each)
        others = own / "others.pth"
        others.write_text(f"{links}\n")
        installs = command(stages()[1], "python -m pip install")
        _run([sys.executable, "-m", "pip", "--python", str(self.python), *_here(installs, wheel.parent)[3:]], home)
        others.write_text(f"{PACKAGES}\n")  # the archive of Spark's classes is of Spark's jars at their own path
        if (Path(sys.prefix) / "var").is_dir():
            (self._home / "var").symlink_to(Path(sys.prefix) / "var")

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run the environment's Python, and return what it printed."""
        return _run([str(self.python), *arguments], cwd or self.cwd)

    @property
    def program(self) -> str:
        """The command that was installed."""
        return str(self._home / "bin" / "strandline")

    def strandline(self, *arguments: str) -> str:
        """Run the command, and return what it printed."""
        return _run([self.program, *arguments], self.cwd)


def _here(line: str, directory: Path) -> list[str]:
    """Return the words of a command of the image, with ``directory`` in the place of its directory of wheels."""
    return [str(directory) if word == WHEELS else word for word in shlex.split(line)]


def _run(words: list[str], cwd: Path) -> str:
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    """Where the wheel is installed."""
    return Elsewhere(tmp_path_factory.mktemp("elsewhere"), wheel)


def ours() -> Iterator[str]:
    """Yield the files of the package."""
    for path in (ROOT / "src" / "strandline").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT / "src").as_posix()


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    """Damage: a query of a benchmark, a schema or a setting of the log is missing where there is no checkout."""
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert names == set(ours())
    assert "strandline/py.typed" in names, "type checkers ignore the annotations of a package without it"


def test_the_wheel_has_the_files_of_the_console(wheel: Path) -> None:
    """Damage: the console of an installed Strandline is a page without its script, or an error."""
    with zipfile.ZipFile(wheel) as opened:
        held = {name.rpartition("/static/")[2] for name in opened.namelist() if "console/static/" in name}
    assert held == {path.name for path in (ROOT / "src/strandline/console/static").iterdir()}


def test_the_wheel_says_its_extras(wheel: Path) -> None:
    """Damage: the command that an error names is refused by pip."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [each for each in opened.namelist() if each.endswith(".dist-info/METADATA")]
        said = opened.read(name).decode()
    extras = set(re.findall(r"^Provides-Extra: (.*)$", said, re.MULTILINE))
    assert extras >= {"all", "delta", "flow", "iceberg", "kafka", "mariadb", "postgres", "redis", "s3", "traces"}
    assert re.search(r"^Requires-Dist: psycopg\[binary\].*; extra == 'postgres'$", said, re.MULTILINE)


def test_the_package_is_the_one_of_the_wheel(elsewhere: Elsewhere) -> None:
    """Damage: all that follows would be a test of the checkout."""
    said = elsewhere.run("-c", "import strandline, sys; print(strandline.__file__); print(sys.path)")
    assert str(elsewhere.python.parent.parent) in said.splitlines()[0]
    assert str(ROOT / "src") not in said
    assert elsewhere.strandline("--version").startswith("strandline ")


def test_doctor_on_a_machine_without_java(elsewhere: Elsewhere) -> None:
    """Damage: the one command that could say what is missing ends in a traceback for want of it."""
    done = subprocess.run(
        [elsewhere.program, "doctor"], cwd=elsewhere.cwd, env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    faults = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert len(faults) == 1
    assert faults[0].startswith("missing  java: Spark needs Java and none is found; install a JDK of version 17")


def test_the_twenty_lines_of_the_readme_run(elsewhere: Elsewhere) -> None:
    """Damage: the first thing that a new user tries fails, and works for us alone."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    (elsewhere.cwd / "twenty.py").write_text(found[1])
    shown = elsewhere.run("twenty.py")
    assert shown.index("Leiden") < shown.index("Delft")


def test_a_new_project_runs(elsewhere: Elsewhere) -> None:
    """Damage: the three commands of docs/install.md fail for want of a file that only the checkout has."""
    elsewhere.strandline("init", "mine")
    ran = json.loads(elsewhere.strandline("run", "--once", "--json", "--project", "mine").splitlines()[-1])
    assert (ran["sources"]["orders"]["durable_records"], ran["problems"]) == (3, {})
    status = json.loads(elsewhere.strandline("status", "--json", "--project", "mine"))
    found = {name: each["phase"] for name, each in status["collections"].items()}
    assert found == {"products": "following", "orders": "following", "sales": "following"}
    assert (elsewhere.cwd / "mine" / "warehouse.duckdb").exists()


def test_the_page_of_options_is_the_one_of_the_docs(elsewhere: Elsewhere) -> None:
    """Damage: a page is read from the checkout, and a user without it gets another one or none."""
    assert elsewhere.strandline("options").strip() == (ROOT / "docs" / "options.md").read_text().strip()
