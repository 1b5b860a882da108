"""Each problem that the package declares is caused by a test that follows its advice, or is listed with why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import problems
import pytest
from tests.controller.ways import (
    test_endpoints,
    test_files,
    test_kafka,
    test_lakes,
    test_places,
    test_postgres,
    test_postgres_server,
    test_servers,
    test_webhooks,
)
from tests.controller.ways.site import Case

import strandline
from strandline.errors import is_wait
from strandline.problem import Problem, Stopped

PACKAGE: Final = Path(str(strandline.__file__)).parent
CASES: Final[list[Case]] = [
    *test_files.CASES,
    *test_kafka.CASES,
    *test_lakes.CASES,
    *test_postgres.CASES,
    *test_postgres_server.CASES,
    *test_endpoints.CASES,
    *test_places.CASES,
    *test_servers.CASES,
    *test_webhooks.CASES,
]
SERVER: Final = "it needs a real server of an old version, or with other settings"
BUG: Final = "it is a bug of Strandline, which a test that could cause it would mend"
ALONE: Final = "a task fills from the start as one, whatever its splits: only a driver that is asked alone"
NOT_FOLLOWED: Final = {
    "columns-not-added": "tests/controller/defining/test_upstream_columns.py follows it",
    "iceberg-branch-absent": "CREATE SOURCE does not ask for it, and a branch is never dropped while it is read",
    "iceberg-format-old": "pyiceberg writes no table of format 1 that it upgrades",
    "iceberg-table-absent": "it needs a catalog: tests/sources/readers/iceberg/test_rest.py causes it",
    "iceberg-table-unreadable": "what pyiceberg refuses cannot be taken from a table by pyiceberg",
    "delta-table-unreadable": "what deltalake refuses cannot be taken from a table by deltalake",
    "value-unheld": "no test writes a value into a Delta or Iceberg column that its own type does not hold",
    "key-not-declared": "tests/sources/test_ingest_errors.py causes it; the way out is another CREATE TABLE",
    "topic-too-wide": "the way out is another topic",
    "upstream-silent": "tests/controller/test_silent_upstreams.py causes it, and it ends when upstream answers",
    "upstream-went-back": "each reader says it first, in words of its own",
    "webhook-shards-apart": "it needs stores that were restored apart",
    "text-not-utf-eight": "no statement and no list makes a text that is not UTF-8",
    "split-fills-alone": ALONE,
    "split-lacks-key": ALONE,
    "unexplained": BUG,
    "view-stuck": BUG,
    "wrong-for-ever": "it needs a replica that computes wrong: tests/controller/instances/test_wrong_replicas.py",
    "postgres-changes-missed": SERVER,
    "postgres-not-there": SERVER,
    "postgres-column-doubted": "tests/sources/readers/postgres/test_added.py causes it",
    "postgres-partition-unlike": SERVER,
    "postgres-server-old": SERVER,
    "postgres-wal-level": SERVER,
}
"""The problems that stop an item and that no test of this room causes, with the reason."""
UNDECLARED: Final = {
    "sources.readers.files.discovery": "it is said by `strandline discover`, and stops nothing",
    "sources.readers.iceberg.table": "it is said by `strandline discover`, and stops nothing",
    "sources.readers.kafka.kind": "it is said by `strandline discover`, and stops nothing",
    "sources.readers.postgres.kind": "of two, one is said by `strandline discover`, and one by DROP SOURCE",
}
"""Modules of sources that raise `SourceError` in words of their own, and why."""


ENDS: Final = frozenset({"DefinitionError", "ConfigError", "CorruptionError"})
"""What a driver or the runtime raises that ends a transaction until the operator acts."""
AT_CREATE: Final = frozenset(
    {
        "driver",
        "drivers.delta.kind",
        "drivers.iceberg.kind",
        "drivers.kafka.driver",
        "drivers.mariadb.dialect",
        "drivers.postgres.dialect",
        "drivers.redis.driver",
        "drivers.sql.target",
        "drivers.sql.text",
        "drivers.sqlite.dialect",
        "drivers.staged.driver",
        "drivers.staged.place",
        "drivers.webhook.driver",
        "drivers.webhook.receiver",
        "protocol.spec",
        "protocol.task",
        "reduce.annotations",
        "reduce.locations",
        "reduce.reducer",
        "reduce.rows",
        "reduce.schemas",
        "reduced",
        "wire.connector",
        "wire.options",
        "wire.specs.collections",
        "wire.specs.resources",
        "wire.specs.schemas",
        "wire.specs.selection",
    }
)
"""Modules that refuse a CREATE MATERIALIZATION, or the options of one, in words of their own: nothing stops."""
SERVED: Final = frozenset({"wire.serve", "wire.specs.checkpoints"})
"""Modules that answer another runtime, which a driver of ours is served to: that says it in words of its own."""


def endings_in_own_words(text: str) -> Iterator[int]:
    """Yield the lines where an error of `ENDS` is made that no declared problem says."""
    for at in ast.walk(ast.parse(text)):
        match at:
            case ast.Call(ast.Name(name), [ast.Call(ast.Attribute(_, "said"))]) if name in ENDS:
                continue
            case ast.Call(ast.Name(name)) if name in ENDS:
                yield at.lineno


def errors_in_own_words(text: str) -> Iterator[int]:
    """Yield the lines where a `SourceError` is made that no declared problem says."""
    for at in ast.walk(ast.parse(text)):
        match at:
            case ast.Call(ast.Name("SourceError"), [ast.Call(ast.Attribute(_, "said"))]):
                continue
            case ast.Call(ast.Name("SourceError"), [ast.Name("said") | ast.Attribute(attr="_lost")]):
                continue
            case ast.Call(ast.Name("SourceError")):
                yield at.lineno


def test_a_source_stops_by_declared_problems_alone() -> None:
    """Damage: a source stops and says no way out; or a way out that no table lists and no test follows."""
    found = {}
    for path in (PACKAGE / "sources").rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if lines := [*errors_in_own_words(path.read_text())]:
            found[name] = lines
    assert {name: lines for name, lines in found.items() if name not in UNDECLARED} == {}
    assert UNDECLARED.keys() <= found.keys(), "it is mended: take it from the list"
    assert [*errors_in_own_words("raise SourceError(f'{x} is gone')")], "a check that sees nothing"


def test_an_endpoint_stops_by_declared_problems_alone() -> None:
    """Damage: one more place where an endpoint stops says a way out that no table lists and no test follows."""
    found = {
        ".".join(path.relative_to(PACKAGE / "materialize").with_suffix("").parts)
        for path in (PACKAGE / "materialize").rglob("*.py")
        if [*endings_in_own_words(path.read_text())]
    }
    assert found - AT_CREATE - SERVED == set()
    assert (AT_CREATE | SERVED) - found == set(), "it is declared now: take it from the list"
    assert [*endings_in_own_words("raise ConfigError(f'{x} is gone')")], "a check that sees nothing"


def test_each_problem_has_a_name_of_its_own_and_a_way_out() -> None:
    """Damage: two problems cannot be told apart, or one stops an item and says no way out."""
    found = [*problems.declared().values()]
    assert len({each.name for each in found}) == len(found)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", each.name) for each in found)
    assert [each.name for each in found if stops(each) and not each.ways] == []


def stops(problem: Problem) -> bool:
    """Return whether a problem stops an item until a way out is taken."""
    return problem.stops not in {Stopped.NOTHING, Stopped.COMMAND} and not is_wait(problem.cause)


def test_each_problem_that_stops_an_item_is_caused_or_is_listed_with_the_reason() -> None:
    """Damage: an advice that does not work, or that stops a neighbour, is found by the first who needs it."""
    caused = {case.problem.name for case in CASES}
    stopping = {each.name for each in problems.declared().values() if stops(each)}
    assert stopping - caused - NOT_FOLLOWED.keys() == set()
    assert caused & NOT_FOLLOWED.keys() == set(), "it is caused now: take it from the list"
    assert NOT_FOLLOWED.keys() - stopping == set(), "there is no such problem"
    assert all(NOT_FOLLOWED.values())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_way_out_of_a_caused_problem_is_taken(case: Case) -> None:
    """Damage: one way out works, and the other is a sentence that no test has tried."""
    untaken = [way.what for way in case.problem.ways if not way.command and way.what not in case.mends]
    assert untaken == []
