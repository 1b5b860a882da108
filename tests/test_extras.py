"""What is installed only where it is wanted: without these libraries all else works, and what needs one says so."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.cli import main
from strandline.console.traces import traces
from strandline.controller.location.config import Config, Mode
from strandline.errors import ConfigError
from strandline.extras import MODULES, TRACES, missing, require
from strandline.materialize.driver import Constraint, ConstraintKind, Validated, require_all
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.store.clock import SystemClock
from strandline.wiring import registry
from strandline.wiring.assemble import assemble

PROJECT = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
EVERY = tuple(module for modules in MODULES.values() for module in modules)

#: Of each extra that an endpoint needs: the endpoint, and options with which it does.
ENDPOINTS = {
    "delta": ("delta", {"path": "/nowhere"}),
    "flow": ("connector", {"command": "cat", "config": "{}"}),
    "iceberg": ("iceberg", {"catalog": "rest", "uri": "http://localhost:1", "namespace": "n"}),
    "kafka": ("kafka", {"servers": "localhost:1"}),
    "mariadb": ("mariadb", {"host": "h", "database": "d", "user": "u"}),
    "postgres": ("postgres", {"host": "h", "database": "d", "user": "u"}),
    "redis": ("redis", {"server": "h"}),
    "s3": ("files", {"path": "s3://bucket/prefix"}),
}
SOURCES = {
    "delta": ("delta", {"path": "/nowhere"}),
    "iceberg": ("iceberg", {"catalog": "rest", "uri": "http://localhost:1", "table": "n.t"}),
    "kafka": ("kafka", {"servers": "localhost:1", "topic": "t"}),
    "postgres": ("postgres", {"host": "h", "database": "d", "user": "u", "publication": "p"}),
    "s3": ("files", {"path": "s3://bucket/prefix/*.csv"}),
}


def names(requirements: list[str]) -> set[str]:
    """Return the distributions that requirements name."""
    return {re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in requirements}


def distribution(module: str) -> str:
    """Return the distribution that a module comes from; several may share the package that it is in."""
    candidates = metadata.packages_distributions()[module.partition(".")[0]]
    place = module.replace(".", "/")
    for each in candidates:
        if any(str(path).startswith((f"{place}/", f"{place}.")) for path in metadata.files(each) or ()):
            return each
    raise AssertionError(f"no distribution has {module}")


@pytest.fixture
def nothing_optional(monkeypatch):
    """Give a Python that has none of the libraries."""
    for module in EVERY:
        monkeypatch.setitem(sys.modules, module, None)


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a Python that cannot import the libraries."""
    block = f"import sys; sys.modules.update(dict.fromkeys({EVERY!r})); "
    return subprocess.run(
        [sys.executable, "-c", block + code], capture_output=True, text=True, timeout=150, check=False
    )


def test_each_extra_installs_what_it_is_asked_for() -> None:
    """Damage: the command that an error names installs something else, and the error stays."""
    assert MODULES.keys() <= OPTIONAL.keys()
    for extra, modules in MODULES.items():
        brought = {distribution(module).lower() for module in modules}
        assert brought == {name.lower() for name in names(OPTIONAL[extra])}, extra
    assert OPTIONAL["all"] == [f"strandline[{','.join(sorted(MODULES))}]"]


def test_no_extra_repeats_what_everyone_has() -> None:
    """Damage: a library that only one endpoint needs is installed, trusted and broken everywhere all the same."""
    optional = set().union(*(names(OPTIONAL[extra]) for extra in MODULES))
    assert optional & names(PROJECT["dependencies"]) == set()


def test_the_command_line_starts_without_any_of_them() -> None:
    """Damage: `pip install strandline` gives a program that ends in a traceback before it can say what is missing."""
    done = without_extras("from strandline.cli import main; sys.exit(main(['--help']) or main(['options']))")
    assert (done.returncode, done.stderr) == (0, "")
    assert "backfill" in done.stdout
    assert "`INTO mariadb`" in done.stdout


def test_the_modules_that_a_session_runs_in_start_without_any_of_them() -> None:
    """Damage: the twenty lines of the README fail for a user who installed what it says."""
    done = without_extras("import strandline, strandline.wiring.assemble, strandline.engine.spark, strandline.testing")
    assert (done.returncode, done.stderr) == (0, "")


def test_every_extra_belongs_to_something_that_can_be_named() -> None:
    """Damage: an extra that nothing asks for is never mentioned to a user who lacks it."""
    assert {*ENDPOINTS, TRACES} == MODULES.keys()


def test_traces_without_their_library_say_what_to_install(nothing_optional) -> None:
    """Damage: `strandline run` ends in a ModuleNotFoundError because its configuration names a collector."""
    wanted = re.escape("`traces` needs the library opentelemetry.sdk, which is not installed: ")
    with pytest.raises(ConfigError, match=wanted + re.escape("pip install 'strandline[traces]'")):
        traces(Config(traces={"endpoint": "http://127.0.0.1:4318"}), None)


@pytest.mark.parametrize(("extra", "endpoint", "options"), [(extra, *rest) for extra, rest in ENDPOINTS.items()])
def test_an_endpoint_without_its_library_says_what_to_install(nothing_optional, extra, endpoint, options) -> None:
    """Damage: the author of a materialization sees a ModuleNotFoundError, and guesses at names of packages."""
    with pytest.raises(ConfigError) as told:
        registry.driver(SystemClock(), endpoint, options)
    wanted = f"endpoint {endpoint} needs the library {MODULES[extra][0]}, which is not installed: "
    assert str(told.value) == f"{wanted}pip install 'strandline[{extra}]'"


@pytest.mark.parametrize(("extra", "connector", "options"), [(extra, *rest) for extra, rest in SOURCES.items()])
def test_a_source_without_its_library_is_refused_when_it_is_created(
    nothing_optional, extra, connector, options
) -> None:
    """Damage: CREATE SOURCE succeeds, and the source fails at every tick until an operator reads the log."""
    readers = registry.Readers(None, None, None, None)  # type: ignore[arg-type]
    schema = None if registry.READERS[connector].tables else Schema((Column("id", "int"),))
    with pytest.raises(ConfigError, match=re.escape(f"source 's' needs the library {MODULES[extra][0]}")) as told:
        readers.check("s", connector, options, schema, {})
    assert str(told.value).endswith(f"pip install 'strandline[{extra}]'")


@pytest.mark.parametrize(
    ("location", "consensus", "needs"),
    [
        ("s3://bucket/prefix", None, "location s3://bucket/prefix needs the library obstore"),
        ("memory://", "postgresql://host/db", "consensus postgresql://… needs the library psycopg"),
    ],
)
def test_a_location_without_its_library_says_what_to_install(nothing_optional, location, consensus, needs) -> None:
    """Damage: an environment in a bucket does not open, and does not say why."""
    with pytest.raises(ConfigError, match=re.escape(needs)):
        assemble(location, spark=None, consensus=consensus, config=Config(), mode=Mode.FULL)


def test_splits_without_the_hash_are_refused_when_they_are_defined(nothing_optional) -> None:
    """Damage: a materialization with splits is created, and fails at its first transaction."""
    schema = Schema((Column("id", "int"),))
    binding, verdict = (
        Binding("v", "t", ("id",), schema),
        Validated({"id": Constraint(ConstraintKind.FIELD_OPTIONAL, "")}),
    )
    with pytest.raises(ConfigError, match=r"'m' has 2 splits, and needs the library fdb.*strandline\[flow\]"):
        require_all(MaterializationSpec("m", (binding,), {}, 2), (verdict,))
    require_all(MaterializationSpec("m", (binding,), {}, 1), (verdict,))


def test_a_command_that_needs_a_library_says_so(monkeypatch, capsys) -> None:
    """Damage: a benchmark of an endpoint is reported as a fault of Strandline itself."""
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "strandline.bench.endpoints.tables", raising=False)
    assert main(["bench", "materialize", "--endpoint", "delta"]) == 1
    assert (
        capsys.readouterr().err
        == "strandline: the library deltalake is not installed: pip install 'strandline[delta]'\n"
    )


def test_what_is_installed_is_not_asked_for_again() -> None:
    """Damage: an endpoint is refused though all that it needs is there."""
    assert {extra: missing(extra) for extra in MODULES} == dict.fromkeys(MODULES, ())
    require("everything", MODULES)
