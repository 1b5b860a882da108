"""tools/setup on machines that lack something: it finds what is there, and says in one sentence what is not.

The machines are pretended: a PATH of our own with stand-ins for `id`, `apt-get`, `python3` and JDKs.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LOCKS = ("requirements-build.lock", "requirements.lock")
ORDINARY = (
    "bash",
    "cat",
    "cut",
    "diff",
    "dirname",
    "env",
    "flock",
    "grep",
    "head",
    "mkdir",
    "mv",
    "readlink",
    "rm",
    "sed",
    "sha256sum",
)


def script(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def jdk(home: Path, version: str, modules: str = "jdk.incubator.vector@17") -> Path:
    """Pretend a JDK at ``home``."""
    answer = (
        f"""case $1 in -version) echo 'openjdk version "{version}"' >&2;; *) echo java.base; echo '{modules}';; esac"""
    )
    script(home / "bin" / "java", answer)
    return home


@dataclass(frozen=True, slots=True)
class Machine:
    """A checkout with its environment installed; the user is not root, there is no Java, and no package to be had."""

    root: Path

    @property
    def bin(self) -> Path:
        """The only directory on the PATH."""
        return self.root / "system-bin"

    def setup(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run tools/setup."""
        places = {"STRANDLINE_JDKS": str(self.root / "jvm"), "STRANDLINE_POSTGRES": str(self.root / "postgresql")}
        environment = {"PATH": str(self.bin), **places, **variables}
        command = ["bash", str(self.root / "tools" / "setup"), *arguments]
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A pretended machine, as `Machine` says."""
    made = Machine(tmp_path)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup", tmp_path / "tools" / "setup")
    for name in (*LOCKS, "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    made.bin.mkdir()
    for name in ORDINARY:
        where = shutil.which(name)
        assert where is not None, name
        (made.bin / name).symlink_to(where)
    script(made.bin / "id", "echo 1000")
    script(made.bin / "apt-get", "exit 100")
    script(tmp_path / ".venv" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    locks = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in LOCKS)).hexdigest()
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    (tmp_path / ".venv" / ".locked").write_text(f"{locks}\n")
    (tmp_path / ".venv" / ".project").write_text(f"{tmp_path} {project}\n")
    return made


def java_home(machine: Machine, **variables: str) -> str:
    """Return the JAVA_HOME that a command run by tools/setup sees."""
    done = machine.setup("bash", "-c", 'echo "$JAVA_HOME"', **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_missing_jdk_is_reported_in_one_sentence(machine: Machine) -> None:
    """Spark's own complaint about a missing Java is a page of stack traces."""
    done = machine.setup("true")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "setup: A JDK >= 17 with jdk.incubator.vector is missing and only root can install it: "
        "run 'apt-get install openjdk-17-jdk-headless' as root and try again."
    )


def test_without_a_package_server_root_sees_what_was_tried(machine: Machine) -> None:
    """An installation that fails must not go on and fail later in a stranger way."""
    script(machine.bin / "id", "echo 0")
    done = machine.setup("true")
    assert done.returncode == 1
    assert "none of these could be installed: openjdk-17-jdk-headless default-jdk-headless" in done.stderr


def test_root_gets_the_jdk_that_can_be_had(machine: Machine) -> None:
    """A newer Debian has no JDK 17: the default one must do."""
    script(machine.bin / "id", "echo 0")
    home = machine.root / "jvm" / "default"
    jdk(machine.root / "elsewhere", "21.0.1")
    (machine.root / "jvm").mkdir()
    link = f"{shutil.which('ln')} -s '{machine.root}/elsewhere' '{home}'"
    install = f"case $* in *default-jdk*) {link};; update*) ;; *) exit 100;; esac"
    script(machine.bin / "apt-get", install)
    assert java_home(machine) == str(home)


def test_a_jdk_that_is_too_old_or_too_slim_is_passed_over(machine: Machine) -> None:
    """Spark would start on neither: the failure would come minutes later, and say nothing of Java's version."""
    old, slim = (
        jdk(machine.root / "old", "11.0.2"),
        jdk(machine.root / "jvm" / "a-slim", "17.0.2", modules="java.logging"),
    )
    (machine.bin / "java").symlink_to(old / "bin" / "java")
    good = jdk(machine.root / "jvm" / "b-good", "17.0.2")
    assert java_home(machine, JAVA_HOME=str(slim)) == str(good)


def test_classes_are_recorded_once_for_a_java(machine: Machine) -> None:
    """Every command would wait for half a minute, or Spark start slowly for ever after an upgrade."""
    jdk(machine.root / "jvm" / "found", "17.0.2")
    warm = machine.root / ".venv" / "bin" / "strandline"
    assert "Spark will start more slowly" in machine.setup().stderr, "its lack stops nothing"
    script(warm, 'echo "warmed for $JAVA_HOME by $1"')
    assert f"warmed for {machine.root / 'jvm' / 'found'} by warm" in machine.setup().stderr
    assert machine.setup().stderr == ""
    mine = jdk(machine.root / "mine", "21")
    assert f"warmed for {mine} by warm" in machine.setup(JAVA_HOME=str(mine)).stderr


def test_the_jdk_that_the_user_names_comes_first(machine: Machine) -> None:
    """Who sets JAVA_HOME means it, also when another one was found before."""
    jdk(machine.root / "jvm" / "found", "17.0.2")
    mine = jdk(machine.root / "mine", "21")
    assert java_home(machine) == str(machine.root / "jvm" / "found")
    assert java_home(machine, JAVA_HOME=str(mine)) == str(mine)


@pytest.mark.parametrize("package", ["postgresql", "redis-server", "mariadb-server-core", "chromium", "tmux"])
def test_who_cannot_install_a_server_goes_on_without(package: str, machine: Machine) -> None:
    """A user without root could run no test at all for want of a server that a few of them need."""
    done = machine.setup("--no-jdk", "--servers", "bash", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert f"run 'apt-get install {package}' as root" in done.stderr
    assert "will be skipped, by name" in done.stderr


def test_root_gets_servers_once_and_only_when_asked(machine: Machine) -> None:
    """Each `make` would ask the package server again, or `make demo` install a database."""
    script(machine.bin / "id", "echo 0")
    calls, programs = machine.root / "calls", machine.root / "postgresql" / "15" / "bin"
    programs.mkdir(parents=True)
    names = ("redis-server", "mariadb-install-db", "my_print_defaults", "chromium", "tmux")
    initdb, redis, maria, client, chromium, tmux = (
        f"{shutil.which('touch')} '{program}'; {shutil.which('chmod')} +x '{program}'"
        for program in (programs / "initdb", *(machine.bin / name for name in names))
    )
    packages = (
        f"*postgresql) {initdb};; *redis-server) {redis};; *mariadb-server-core) {maria};; "
        f"*mariadb-client-core) {client};; "
        f"*chromium) {chromium};; *tmux) {tmux};;"
    )
    script(machine.bin / "apt-get", f"echo \"$@\" >>'{calls}'; case $* in {packages} esac")
    assert machine.setup("--no-jdk").returncode == 0
    assert not calls.exists()
    assert machine.setup("--servers", "--no-jdk").returncode == 0
    assert (programs / "initdb").exists()
    assert (machine.bin / "redis-server").exists()
    calls.unlink()
    assert machine.setup("--no-jdk", "--servers").returncode == 0
    assert not calls.exists()


@pytest.fixture
def maven(machine: Machine) -> Path:
    """The directory of what a pretended Ivy fetches: one jar, which the committed list has."""
    there = machine.root / "maven" / "kafka-broker"
    there.mkdir(parents=True)
    (there / "kafka.jar").write_text("a jar")
    (machine.root / "tools" / "jars").mkdir()
    (machine.root / "tools" / "jars" / "ivy.xml").write_text("<ivy-module/>")
    wanted = hashlib.sha256(b"a jar").hexdigest()
    (machine.root / "tools" / "jars" / "jars.sha256").write_text(f"{wanted}  kafka-broker/kafka.jar\n")
    java = jdk(machine.root / "jvm" / "found", "17.0.2") / "bin" / "java"
    fetch = f"{shutil.which('cp')} -r '{there.parent}' '{machine.root}/.venv/var/jars.new'; echo fetched >&2"
    script(java, java.read_text().replace("#!/bin/sh\n", f'case "$*" in *-retrieve*) {fetch}; exit;; esac\n'))
    (machine.root / ".venv" / "var").mkdir()
    script(machine.bin / "initdb", "")
    script(machine.bin / "redis-server", "")
    script(machine.bin / "mariadb-install-db", "")
    script(machine.bin / "my_print_defaults", "")
    script(machine.bin / "chromium", "")
    script(machine.bin / "tmux", "")
    script(machine.root / ".venv" / "bin" / "strandline", "")
    return there


def test_the_jars_of_servers_are_fetched_once_and_only_when_asked(machine: Machine, maven: Path) -> None:
    """Each `make test` would ask Maven again, or `make demo` fetch 50 MB that it does not use."""
    jar = machine.root / ".venv" / "var" / "jars" / "kafka-broker" / "kafka.jar"
    assert machine.setup().returncode == 0
    assert not jar.exists()
    assert "fetched" in machine.setup("--servers").stderr
    assert jar.read_text() == "a jar"
    assert machine.setup("--servers").stderr == ""


@pytest.mark.parametrize("there", ["kafka.jar", "another.jar"])
def test_a_jar_that_is_not_the_one_of_the_list_is_not_used(machine: Machine, maven: Path, there: str) -> None:
    """Damage: tests run, with our rights, whatever a repository, or a program in between, answers."""
    (maven / there).write_text("another jar")
    done = machine.setup("--servers", "bash", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "tests that need Kafka, JDBC or an Iceberg catalog will be skipped, by name" in done.stderr
    assert not (machine.root / ".venv" / "var" / "jars").exists()


def test_an_old_python_is_refused_in_one_sentence(machine: Machine) -> None:
    """A syntax error deep in a library would be the other way to say it."""
    script(machine.root / ".venv" / "bin" / "python", "exit 1")
    script(machine.bin / "python3", "exit 1")
    done = machine.setup("--no-jdk", "true")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "setup: Python >= 3.11 is missing: install it, or name one with PYTHON=/path/to/python, and try again."
    )


def test_an_interrupted_installation_is_done_again(machine: Machine) -> None:
    """Damage: half an environment that counts as whole fails in ways that no message explains."""
    (machine.root / ".venv" / ".locked").unlink()
    calls = machine.root / "calls"
    pip = f'echo "$@" >>"{calls}"; test ! -e "{machine.root}/broken"'
    script(
        machine.root / ".venv" / "bin" / "python",
        f'case "$*" in *install*) {pip};; *) exec "{sys.executable}" "$@";; esac',
    )
    (machine.root / "broken").touch()
    assert machine.setup("--no-jdk").returncode != 0
    assert not (machine.root / ".venv" / ".locked").exists()
    (machine.root / "broken").unlink()
    calls.unlink()
    assert machine.setup("--no-jdk").returncode == 0
    assert [line.count("--require-hashes") for line in calls.read_text().splitlines()] == [1, 1]
    calls.unlink()
    assert machine.setup("--no-jdk").returncode == 0
    assert not calls.exists(), "what is installed is not installed again"


def test_a_command_s_exit_status_is_handed_on(machine: Machine) -> None:
    """`make test` would be green whatever the tests say."""
    assert machine.setup("--no-jdk", "bash", "-c", "exit 3").returncode == 3
