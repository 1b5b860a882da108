"""What is imported before it is needed: nothing that takes long.

A question waits for what it imports.  So these look at the modules that another process has after it, not at seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import strandline

HEAVY = ("pandas", "duckdb", "pyspark", "py4j", "psycopg", "confluent_kafka", "deltalake", "pyiceberg", "obstore")
"""What only rows, or one upstream or endpoint, need."""
_SAYS = "; import json, sys; print(json.dumps(sorted(sys.modules)))"


def loaded(program: str) -> set[str]:
    """Return the modules that a process has after ``program``."""
    done = subprocess.run([sys.executable, "-c", program + _SAYS], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_imports_nothing_else() -> None:
    """Damage: every program that only connects, or may not even use it, waits for a second."""
    found = loaded("import strandline")
    assert not found & {
        *HEAVY,
        "pyarrow",
        "numpy",
        "sqlglot",
        "strandline.wiring.registry",
        "strandline.client.opening",
    }
    assert "strandline.errors" in found


@pytest.mark.parametrize("name", strandline.__all__)
def test_each_public_name_is_there_at_its_first_use(name: str) -> None:
    """Damage: a name of the public face is an AttributeError, and a type checker says that it is there."""
    assert getattr(strandline, name) is vars(strandline)[name]
    assert name in dir(strandline)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    """Damage: a misspelt name is an error of some other kind, which `hasattr` and `from … import` do not expect."""
    with pytest.raises(AttributeError, match="module 'strandline' has no attribute 'opne'"):
        strandline.opne  # noqa: B018  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["strandline.cli", "strandline.client.opening", "strandline.serving.remote"])
def test_what_opens_and_what_connects_imports_no_library_of_rows(module: str) -> None:
    """Damage: `strandline status` takes as long as Spark's Python, pandas and every endpoint's client do."""
    assert not loaded(f"import {module}") & set(HEAVY)


def test_who_asks_a_living_process_imports_neither_what_runs_views_nor_the_parser() -> None:
    """Damage: each `strandline status` beside a running process waits for a second before it asks."""
    found = loaded("import strandline.cli.asking, strandline.serving.remote")
    assert not found & {"sqlglot", "strandline.controller.core", "strandline.client.environment"}


def test_a_reader_or_driver_is_imported_when_it_is_chosen() -> None:
    """Damage: an environment without Kafka and DuckDB waits for both of their clients."""
    registry = "from strandline.wiring.registry import DRIVERS, READERS, named"
    assert not loaded(registry) & {
        "strandline.sources.readers.kafka.kind",
        "strandline.materialize.drivers.duckdb.kind",
    }
    assert "strandline.materialize.drivers.duckdb.kind" in loaded(f"{registry}; named(DRIVERS, 'endpoint', 'duckdb')")
