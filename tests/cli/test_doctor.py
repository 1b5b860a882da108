"""`strandline doctor` and `--version`: what is missing is said by name with what to do, and nothing secret is said."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from strandline.cli import main
from strandline.cli.doctor import command, machine, places, servers
from strandline.cli.doctor.finding import Finding, State
from strandline.cli.doctor.places import needed
from strandline.cli.template import create_project
from strandline.connections.addresses import Address, Listening, Reaching
from strandline.connections.logins import LogsIn
from strandline.controller.defining.project.files import load
from strandline.controller.location.catalog import KEY, CatalogStore, Holder
from strandline.controller.location.tenure import SystemProcesses
from strandline.options import options_of
from strandline.persist.handles.location import Pair, agree
from strandline.persist.handles.register import Register
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.memory import MemoryConsensus
from strandline.wiring.locations import BLOB
from strandline.wiring.loop import at_once
from strandline.wiring.registry import DRIVERS, READERS

ROOT = Path(__file__).resolve().parents[2]
CANARY = "hunter2-canary"
JDK = ("17.0.9", "java.base@17\njdk.incubator.vector@17")


def fake_java(home: Path, version: str, modules: str = "java.base@17") -> Path:
    """Make a program that answers as `java` does; return its JAVA_HOME."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\ncase $1 in -version) echo \'openjdk version "{version}"\' >&2;; *) echo "{modules}";; esac\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


@pytest.fixture
def healthy(tmp_path, monkeypatch) -> None:
    """A machine on which nothing is missing, whatever this one lacks."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", *JDK)))
    monkeypatch.setattr("strandline.engine.session.class_archive.is_whole", lambda archive: True)


@pytest.fixture
def project(tmp_path, healthy) -> Path:
    """A project of `strandline init`."""
    create_project(tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture
def listening() -> Iterator[int]:
    """A port at which something answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    """A port at which nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def asked(capsys, *arguments: str) -> tuple[int, dict[str, list[dict[str, str]]], str]:
    """Run `doctor --json`; return its status, the findings by check, and all that it printed."""
    status = main(["doctor", "--json", *arguments])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["ok"] == (status == 0) == all(each["state"] == "ok" for each in document["checks"])
    found: dict[str, list[dict[str, str]]] = {}
    for each in document["checks"]:
        assert (each["act"] is None) == (each["state"] == "ok")
        found.setdefault(each["check"], []).append(each)
    return status, found, printed.out + printed.err


def faults(found: dict[str, list[dict[str, str]]]) -> list[tuple[str, str]]:
    """Return the checks that are not ok, and their states."""
    return [(each["check"], each["state"]) for some in found.values() for each in some if each["state"] != "ok"]


def write(project: Path, name: str, text: str) -> None:
    """Write one of the project's files."""
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text(text)


# --- the machine ------------------------------------------------------------------------------------------------------
def test_nothing_is_missing_for_a_new_project(project, capsys) -> None:
    """Damage: a machine that is as it should be is reported as broken, and no operator believes the next report."""
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (0, [])
    assert {
        "python",
        "pyspark",
        "pandas",
        "java",
        "class archive",
        "project",
        "location",
        "disk",
        "consensus",
    } <= found.keys()


def test_a_check_is_a_line(project, capsys) -> None:
    """Damage: an operator must read a page to find the one thing that is missing."""
    assert main(["doctor", "--project", str(project)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not re.match(r"ok       [a-z ]+: ", line)] == []


def test_without_a_project_the_machine_is_looked_at(healthy, tmp_path, monkeypatch, capsys) -> None:
    """Damage: a new user cannot ask whether Java is there."""
    monkeypatch.chdir(tmp_path)
    status, found, _ = asked(capsys)
    assert status == 0
    assert "java" in found
    assert "location" not in found


def test_a_machine_without_java(project, monkeypatch, capsys) -> None:
    """Damage: the first run ends in forty lines of Spark's about something else."""
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "")
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("java", "missing")])
    assert found["java"][0]["found"] == "Spark needs Java and none is found"
    assert re.match(r"install a JDK of version 17 or later .* JAVA_HOME", found["java"][0]["act"])


@pytest.mark.parametrize(
    ("version", "said"), [("11.0.2", "Java 11"), ("1.8.0_392", "Java 8"), ("17.0.9", "jdk.incubator.vector")]
)
def test_a_machine_whose_java_cannot_run_spark(project, tmp_path, monkeypatch, capsys, version, said) -> None:
    """Damage: Java is there, so no one looks at it, and Spark does not start."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version)))
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("java", "wrong")])
    assert said in found["java"][0]["found"]


def test_an_archive_that_is_missing_is_named_with_its_command(tmp_path, monkeypatch) -> None:
    """Damage: Spark starts in twice the time for ever, because its operator does not know of `strandline warm`."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    home = fake_java(tmp_path / "jdk", *JDK)
    _, archive = machine.java({"JAVA_HOME": str(home)})
    assert archive.state is State.OK, "Spark starts without it, too"
    assert "`strandline warm`" in archive.found


@pytest.mark.parametrize(
    "finding",
    [
        machine.python((3, 10, 4)),
        machine.pyspark("4.2.1"),
        machine.pyspark("4.30.0"),
        machine.pyspark("none"),
        machine.pandas("3.0.1"),
        machine.pandas("none"),
        machine.text("ISO-8859-1"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_not_ok(finding: Finding) -> None:
    """Damage: Spark refuses pandas 3 in the middle of a step, or text of a project is read as other letters."""
    assert finding.state is not State.OK


def test_few_open_files_are_too_few(monkeypatch) -> None:
    """Damage: a large step ends in `Too many open files`, hours after the start."""
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 256))
    assert machine.open_files().state is State.WRONG


def test_what_is_checked_is_what_is_installed() -> None:
    """Damage: after an upgrade of Spark, `doctor` refuses the version that pip installs."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert declared["requires-python"] == ">=" + ".".join(map(str, machine.PYTHON_MIN))
    assert f"pyspark=={machine.PYSPARK}.*" in declared["dependencies"]
    pandas = next(each for each in declared["dependencies"] if each.startswith("pandas"))
    assert pandas.endswith(f"<{machine.PANDAS_MAJOR_MAX + 1}")


# --- the project ------------------------------------------------------------------------------------------------------
def test_a_project_that_is_not_there(healthy, tmp_path, capsys) -> None:
    """Damage: a mistyped directory is reported as sound."""
    status, found, _ = asked(capsys, "--project", str(tmp_path / "nowhere"))
    assert (status, faults(found)) == (1, [("project", "wrong")])


def test_a_location_that_this_user_cannot_write(project, capsys) -> None:
    """Damage: the first write of a service fails, in the middle of the night it is deployed in."""
    write(project, "strandline.yml", "location: /proc/strandline\n")
    (project / "materializations" / "reports.yml").unlink()
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("location", "wrong")])
    assert "'/proc/strandline' cannot be created" in found["location"][0]["found"]


def test_a_disk_that_is_full(project, monkeypatch, capsys) -> None:
    """Damage: compaction, which needs room, stops first, and the disk fills faster."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: os.terminal_size((0, 0)) and _Usage(1 << 20))
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("disk", "wrong")])


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


REDIS = "CREATE MATERIALIZATION cache INTO redis OPTIONS (server '127.0.0.1:{port}') AS sales KEY (product, day);\n"


def test_a_server_that_does_not_answer_is_named(project, closed_port, capsys) -> None:
    """Damage: an endpoint stands still, and the cause is found by guessing at firewalls."""
    write(project, "materializations/cache.sql", REDIS.format(port=closed_port))
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("server", "missing")])
    said = found["server"][0]["found"]
    assert said.startswith(f"materialization 'cache': nothing answers at 127.0.0.1:{closed_port} (")


def test_a_server_that_answers_is_said_to(project, listening, capsys) -> None:
    """Damage: a server that is there is reported as missing."""
    write(project, "materializations/cache.sql", REDIS.format(port=listening))
    status, found, _ = asked(capsys, "--project", str(project))
    assert found["server"][0]["found"] == f"materialization 'cache': 127.0.0.1:{listening} answers"
    assert (status, faults(found)) == (1, [("login", "wrong")]), "it does not speak"


def test_a_consensus_that_does_not_answer(project, closed_port, capsys) -> None:
    """Damage: the one server that everything waits for is the one that is not checked."""
    write(
        project, "strandline.yml", f"location: data\nconsensus: postgresql://me:{CANARY}@127.0.0.1:{closed_port}/db\n"
    )
    (project / "materializations" / "reports.yml").unlink()
    status, found, printed = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("consensus", "missing")])
    assert f"127.0.0.1:{closed_port}" in found["consensus"][0]["found"]
    assert CANARY not in printed


def test_a_consensus_that_is_lost_is_not_said_to_be_made_by_the_first_run(project, capsys) -> None:
    """Damage: `doctor` calls a location sound that no process can open."""
    blob = FileBlob(project / "data" / BLOB)
    pair = Pair(blob, MemoryConsensus(), str(project / "data"), "consensus.db (SQLite, inside the location)")
    at_once(agree(pair, SystemClock(), SystemIds(), writes=True))
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("consensus", "wrong")])
    assert "has lost its consensus, consensus.db (SQLite, inside the location)" in found["consensus"][0]["found"]


CONNECTION = """
CREATE CONNECTION shop TO postgres
    (host = '127.0.0.1', port = '{port}', database = 'shop', user = 'me', password = 'env:SHOP_PASSWORD');
"""
SOURCE = "CREATE SOURCE changes FROM postgres (connection = shop, publication = 'p');\n"


def _with_postgres(project: Path, port: int) -> None:
    write(project, "connections/shop.sql", CONNECTION.format(port=port))
    write(project, "sources/changes.sql", SOURCE)


def test_a_library_that_is_missing_is_named_with_its_command(project, listening, monkeypatch, capsys) -> None:
    """Damage: a project that works on one machine ends in a ModuleNotFoundError on the next."""
    _with_postgres(project, listening)
    monkeypatch.setenv("SHOP_PASSWORD", CANARY)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("extra", "missing")])
    assert found["extra"][0]["act"] == "pip install 'strandline[postgres]'"
    assert "source 'changes'" in found["extra"][0]["found"]


def test_a_secret_is_followed_and_never_shown(project, listening, monkeypatch, capsys) -> None:
    """Damage: a report that is pasted into a ticket holds the password of the database."""
    _with_postgres(project, listening)
    monkeypatch.setenv("SHOP_PASSWORD", CANARY)
    status, found, printed = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("login", "wrong")]), "it does not speak"
    assert found["references"][0]["found"].startswith("2 lead")  # the source has it by its connection
    assert [each["found"] for each in found["server"]] == [
        f"connection 'shop', source 'changes': 127.0.0.1:{listening} answers"
    ]
    assert CANARY not in printed


def test_a_reference_that_leads_nowhere_is_named(project, listening, monkeypatch, capsys) -> None:
    """Damage: a service that is deployed without one of its variables fails where that is first used."""
    _with_postgres(project, listening)
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, {check for check, _ in faults(found)}) == (1, {"reference"})
    assert "connection 'shop', password: " in found["reference"][0]["found"]
    assert "'SHOP_PASSWORD'" in found["reference"][0]["found"]
    assert found["server"][0]["found"].endswith(f"127.0.0.1:{listening} answers")  # which is known all the same


def test_a_consensus_that_is_a_reference_to_nothing_is_said_once(project, monkeypatch, capsys) -> None:
    """Damage: one cause has two lines, of which the second one blames the location."""
    monkeypatch.delenv("STRAND_CONSENSUS", raising=False)
    write(project, "strandline.yml", "location: data\nconsensus: env:STRAND_CONSENSUS\n")
    (project / "materializations" / "reports.yml").unlink()
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("reference", "missing")])


def test_a_location_of_an_unknown_kind_is_wrong(project, capsys) -> None:
    """Damage: a mistyped scheme is reported as sound, and refused at the first run."""
    write(project, "strandline.yml", "location: sss://bucket/prefix\n")
    (project / "materializations" / "reports.yml").unlink()
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("location", "wrong")])


def test_an_unused_endpoint_with_an_unknown_driver_is_wrong(project, capsys) -> None:
    """Damage: a mistyped driver is found by the first user of the endpoint, months later."""
    with (project / "strandline.yml").open("a") as settings:
        settings.write("  spare:\n    driver: nonesuch\n")
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("definition", "wrong")])
    assert "nonesuch" in found["definition"][0]["found"]


def test_an_option_that_is_not_known_is_wrong(project, capsys) -> None:
    """Damage: all checks are ok, and the project does not run."""
    write(project, "materializations/cache.sql", REDIS.format(port=1).replace("server", "servers"))
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("definition", "wrong")])
    assert "did you mean 'server'?" in found["definition"][0]["found"]


WEBHOOK = "CREATE SOURCE pushed (id INT) FROM webhook (listen = '127.0.0.1:{port}', path = '/x');\n"


def test_a_port_that_something_else_has_is_named(project, listening, capsys) -> None:
    """Damage: a webhook source cannot listen, and its senders talk to another program."""
    write(project, "sources/pushed.sql", WEBHOOK.format(port=listening))
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, faults(found)) == (1, [("port", "wrong")])
    assert f"127.0.0.1:{listening}" in found["port"][0]["found"]


def test_a_port_that_is_free_is_ok(project, closed_port, capsys) -> None:
    """Damage: a port that nothing has is reported as taken."""
    write(project, "sources/pushed.sql", WEBHOOK.format(port=closed_port))
    status, found, _ = asked(capsys, "--project", str(project))
    assert (status, found["port"][0]["found"]) == (0, f"source 'pushed': 127.0.0.1:{closed_port} is free")


def test_a_port_is_not_taken_by_the_writer_that_should_have_it(listening) -> None:
    """Damage: while everything runs, `doctor` says that it cannot."""
    assert servers.port("source 's'", Address("127.0.0.1", listening), written=True).state is State.OK


@pytest.mark.parametrize(
    "kind", [*READERS.values(), *DRIVERS.values()], ids=lambda kind: f"{type(kind).__name__}-{kind.name}"
)
def test_options_that_name_a_server_say_where_it_is(kind) -> None:
    """Damage: `doctor` says that all is well, because it does not know that there is a server to ask for."""
    names = {each.name for each in options_of(kind.options)}
    reaching = bool(names & {"host", "server", "servers", "url", "uri", "endpoint"})
    assert (issubclass(kind.options, Reaching), issubclass(kind.options, Listening)) == (reaching, "listen" in names)
    assert issubclass(kind.options, LogsIn) == ("password" in names)


def test_a_socket_of_this_machine_is_a_server_too(tmp_path) -> None:
    """Damage: a database that is reached by its socket is always reported as missing."""
    place = Address(str(tmp_path / "s"))
    assert servers.server(["x"], place).state is State.MISSING
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place.host)
        listener.listen()
        assert servers.server(["x"], place).state is State.OK


def test_the_port_that_the_writer_serves_at_is_looked_at(project, listening) -> None:
    """Damage: `strandline run` ends at its start, because another program has the port that is to be served at."""
    loaded = load(project)
    serving = replace(
        loaded, config={**loaded.config, "serve_at": f"127.0.0.1:{listening}", "serve_token": "env:NOT_SET"}
    )
    settings = needed(serving)[0]
    assert settings.listens == (Address("127.0.0.1", listening),)
    (fault,) = settings.faults
    assert "strandline.yml, serve_token" in fault.found


def test_the_port_of_the_console_is_looked_at(project, listening) -> None:
    """Damage: as above, and a console that is switched off is taken for a host of that name."""
    loaded = load(project)
    at = replace(loaded, config={**loaded.config, "console_at": f"127.0.0.1:{listening}"})
    assert needed(at)[0].listens == (Address("127.0.0.1", listening),)
    assert needed(replace(loaded, config={**loaded.config, "console_at": "none"}))[0].listens == ()


# --- who writes -------------------------------------------------------------------------------------------------------
def _written_by(holder: Holder | None, project: Path) -> tuple[Finding, bool]:
    catalogs = CatalogStore(Register(KEY, SystemClock(), SystemIds(), MemoryConsensus()))
    if holder is not None:
        asyncio.run(catalogs.change(0, lambda catalog: msgspec.structs.replace(catalog, holder=holder)))
    return places._writer(load(project), catalogs)


def _holder(pid: int, *, deployment: str = "mine", host: str = "", reentrant: bool = True) -> Holder:
    processes = SystemProcesses()
    started = processes.started_ms(os.getpid(), processes.boot())
    assert started is not None
    return Holder(deployment, host or processes.host(), pid, started, 0, reentrant, processes.boot())


def test_who_writes_the_location_is_said(project) -> None:
    """Damage: two writers are started by two people, and each fences the other."""
    assert _written_by(None, project)[1] is False
    finding, written = _written_by(_holder(os.getpid()), project)
    assert (finding.state, written) == (State.OK, True)
    assert str(os.getpid()) in finding.found


def test_a_writer_that_has_ended_is_succeeded_by_its_own_deployment_alone(project) -> None:
    """Damage: `run` is refused after a crash, though `doctor` said that all was well."""
    gone = 2**22 + 1  # beyond what a process id can be
    assert _written_by(_holder(gone), project)[0].state is State.OK
    assert _written_by(_holder(gone, reentrant=False), project)[0].state is State.WRONG
    assert _written_by(_holder(1, deployment="another", host="elsewhere"), project)[0].state is State.WRONG


# --- jars -------------------------------------------------------------------------------------------------------------
def test_jars_that_are_not_there_are_named(tmp_path) -> None:
    """Damage: Spark starts, and the first read of a long topic fails for want of a class."""
    (lacking,) = machine.jars({}, str(tmp_path))
    assert (lacking.check, lacking.state) == ("jars", State.MISSING)
    (lacking,) = machine.jars({"spark.jars": f"{tmp_path}/a.jar"}, None)
    assert (lacking.state, f"{tmp_path}/a.jar" in lacking.found) == (State.MISSING, True)
    (tmp_path / "a.jar").touch()
    assert [each.state for each in machine.jars({"spark.jars": f"{tmp_path}/a.jar"}, str(tmp_path))] == [State.OK]
    assert list(machine.jars({}, None)) == []


def test_packages_of_maven_are_there_or_can_be_fetched(tmp_path, closed_port, listening) -> None:
    """Damage: a machine without a way to Maven learns of it from a timeout of Spark, minutes later."""
    settings = {"spark.jars.packages": "org.x:a:1", "spark.jars.ivy": str(tmp_path)}
    (away,) = machine.jars({**settings, "spark.jars.repositories": f"http://127.0.0.1:{closed_port}"}, None)
    assert away.state is State.WRONG
    (near,) = machine.jars({**settings, "spark.jars.repositories": f"http://127.0.0.1:{listening}"}, None)
    assert near.state is State.OK
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "org.x_a-1.jar").touch()
    (here,) = machine.jars({**settings, "spark.jars.repositories": f"http://127.0.0.1:{closed_port}"}, None)
    assert (here.state, "fetched before" in here.found) == (State.OK, True)


# --- versions ---------------------------------------------------------------------------------------------------------
def test_versions_are_one_line(healthy, capsys) -> None:
    """Damage: a report of a fault does not say of which versions it is."""
    assert main(["--version"]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(r"strandline \S+, Python 3\.\S+, PySpark 4\.3\S*, Java 17\.0\.9 \(\S+/bin/java\)\n", said)
    assert main(["--version", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["java"]["version"] == "17.0.9"
    assert document["python"] == ".".join(map(str, sys.version_info[:3]))


def test_versions_without_java(monkeypatch, capsys) -> None:
    """Damage: the one machine whose versions are asked for, because nothing works on it, says nothing."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.endswith("Java none\n")
    assert main(["--version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["java"] is None


def test_json_without_a_command_is_wrong_usage(capsys) -> None:
    """Damage: a script that writes `strandline --json status` gets a table and status 0."""
    assert main(["--json", "status"]) == 2
    assert "--json goes behind the command" in capsys.readouterr().err


def test_no_more_checks_wait_than_there_is_room_for() -> None:
    """Damage: a project of many servers has its checks wait for each other, and answers after a minute."""
    assert command.AT_ONCE_MAX * servers.CONNECT_SECONDS_MAX >= 10
