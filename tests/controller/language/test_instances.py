"""An instance is read as what its author wrote, or refused where it stops making sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.controller.language.instances import AddReplica, CreateInstance, DropReplica
from strandline.controller.language.statements import (
    CreateMaterialization,
    CreateSource,
    CreateView,
    Drop,
    Statement,
    parse,
    placed,
)
from strandline.errors import DefinitionError, Position
from strandline.frontier import Every, Refresh


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        (
            "CREATE INSTANCE x REPLICAS (a 'localhost:7071', B '[::1]:7072')",
            CreateInstance("x", {"a": "localhost:7071", "b": "[::1]:7072"}),
        ),
        ("create instance if not exists x replicas ();", CreateInstance("x", {}, if_not_exists=True)),
        (
            "CREATE OR REPLACE INSTANCE `x y` REPLICAS (`a b` '10.0.0.1:65535')",
            CreateInstance("x y", {"a b": "10.0.0.1:65535"}, replaces=True),
        ),
        ("ALTER INSTANCE x ADD REPLICA A 'h-1.example:1'", AddReplica("x", "a", "h-1.example:1")),
        ("alter instance x drop replica A", DropReplica("x", "a")),
        ("DROP INSTANCE x", Drop("instance", "x", if_exists=False)),
        ("DROP INSTANCE IF EXISTS x;", Drop("instance", "x", if_exists=True)),
    ],
)
def test_each_statement_of_an_instance_is_read_as_what_it_says(text: str, statement: Statement) -> None:
    """Else a view runs in another process than its author named."""
    assert parse(text) == statement


@pytest.mark.parametrize("instance", ["", "IN INSTANCE `x` "])
@pytest.mark.parametrize("refresh", ["", "REFRESH EVERY '1 h' "])
@pytest.mark.parametrize("history", ["", "KEEP HISTORY FOR '2 h' "])
@pytest.mark.parametrize("quiet", ["", "IF NOT EXISTS "])
def test_a_view_names_its_instance_beside_any_other_clause(
    instance: str, refresh: str, history: str, quiet: str
) -> None:
    """Else a clause takes the instance from a view, which then runs in the process of the environment."""
    head = f"CREATE MATERIALIZED VIEW {quiet}v {instance}{refresh}{history}AS "
    found = parse(f"{head}TABLE t")
    assert found == CreateView(
        "v",
        "TABLE t",
        Position(1, len(head) + 1),
        if_not_exists=bool(quiet),
        refresh=Refresh((Every(3_600_000),)) if refresh else None,
        instance="x" if instance else "",
        keep_history="2 h" if history else None,
    )
    assert isinstance(found, CreateView)
    assert found.instance_at == (Position(1, head.index("`x`") + 1) if instance else None)


@pytest.mark.parametrize("quiet", ["", "IF NOT EXISTS "])
@pytest.mark.parametrize("columns", ["", "(a INT) "])
@pytest.mark.parametrize("upstream", ["FROM files", "FROM files (path = p)", "USING files OPTIONS (path 'p')"])
@pytest.mark.parametrize("clauses", ["", " FORMAT JSON", " KEEP HISTORY FOR '2 h'", " KEY (a) KEEP HISTORY FOR '2 h'"])
def test_a_source_names_its_instance_beside_any_other_clause(
    quiet: str, columns: str, upstream: str, clauses: str
) -> None:
    """Else a clause takes the instance from a source, which is then read by the process of the environment."""
    plain = parse(f"CREATE SOURCE {quiet}s {columns}{upstream}{clauses}")
    head = f"CREATE SOURCE {quiet}s IN INSTANCE "
    found = parse(f"{head}`X` {columns}{upstream}{clauses}")
    assert isinstance(plain, CreateSource)
    assert isinstance(found, CreateSource)
    assert (plain.instance, plain.instance_at) == ("", None)
    assert found == replace(plain, instance="X")
    assert found.instance_at == Position(1, len(head) + 1)


@pytest.mark.parametrize("quiet", ["", "IF NOT EXISTS "])
@pytest.mark.parametrize("options", ["", "OPTIONS (path 'p') "])
@pytest.mark.parametrize("bound", ["v", "v TO t KEY (a), w", "`in` TO `in`"])
def test_a_materialization_names_its_instance_beside_any_other_clause(quiet: str, options: str, bound: str) -> None:
    """Else a clause takes the instance from an endpoint, which the process of the environment then writes."""
    plain = parse(f"CREATE MATERIALIZATION {quiet}m INTO duckdb {options}AS {bound}")
    head = f"CREATE MATERIALIZATION {quiet}m IN INSTANCE "
    found = parse(f"{head}`X` INTO duckdb {options}AS {bound}")
    assert isinstance(plain, CreateMaterialization)
    assert isinstance(found, CreateMaterialization)
    assert (plain.instance, plain.instance_at) == ("", None)
    assert found == replace(plain, instance="X")
    assert found.instance_at == Position(1, len(head) + 1)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("CREATE INSTANCE x", Position(1, 18), "expected REPLICAS, found the end"),
        ("CREATE INSTANCE x REPLICAS", Position(1, 27), r"expected \(, found the end"),
        ("CREATE INSTANCE x REPLICAS (a)", Position(1, 30), r"expected a quoted value, found '\)'"),
        ("CREATE INSTANCE x REPLICAS (a 'h:1' b 'h:2')", Position(1, 37), "expected ,, found 'b'"),
        ("CREATE INSTANCE x REPLICAS (a 'h:1',)", Position(1, 37), "expected a replica"),
        ("CREATE INSTANCE x REPLICAS (a.b 'h:1')", Position(1, 30), "a name has one part"),
        ("CREATE INSTANCE x REPLICAS ('a' 'h:1')", Position(1, 29), "expected a replica, found 'a'"),
        ("CREATE INSTANCE x REPLICAS (a 'h')", Position(1, 31), "'h' is no address of a replica: write 'host:port'"),
        ("CREATE INSTANCE x REPLICAS (a 7071)", Position(1, 31), "'7071' is no address"),
        ("CREATE INSTANCE x REPLICAS (a 'h:')", Position(1, 31), "'h:' is no address"),
        ("CREATE INSTANCE x REPLICAS (a ':7071')", Position(1, 31), "':7071' is no address"),
        ("CREATE INSTANCE x REPLICAS (a 'http://h:1')", Position(1, 31), "'http://h:1' is no address"),
        ("CREATE INSTANCE x REPLICAS (a '::1:7071')", Position(1, 31), "'::1:7071' is no address"),
        ("CREATE INSTANCE x REPLICAS (a 'h:0')", Position(1, 31), "'h:0' is no address.* a port from 1 to 65535"),
        ("CREATE INSTANCE x REPLICAS (a 'h:1',\n b 'h:65536')", Position(2, 4), "'h:65536' is no address"),
        ("CREATE INSTANCE x REPLICAS (a 'h:1',\n A 'h:2')", Position(2, 2), "replica 'a' is named twice"),
        ("CREATE INSTANCE x REPLICAS (a 'h:1', b 'H:1')", Position(1, 38), "replica 'b' has the address of 'a'"),
        ("CREATE INSTANCE x REPLICAS (a 'localhost:1', b '[::1]:1')", Position(1, 46), "'b' has the address of 'a'"),
        ("CREATE INSTANCE x REPLICAS (a '127.0.0.1:1', b 'LOCALHOST:01')", Position(1, 46), "the address of 'a'"),
        ("CREATE OR REPLACE INSTANCE IF NOT EXISTS x REPLICAS ()", Position(1, 42), "contradict each other"),
        ("CREATE INSTANCE x.y REPLICAS ()", Position(1, 18), "a name has one part"),
        ("CREATE INSTANCE x REPLICAS () y", Position(1, 31), "expected the end of the statement"),
        ("ALTER INSTANCE x", Position(1, 17), "expected ADD REPLICA or DROP REPLICA"),
        ("ALTER INSTANCE x RENAME TO y", Position(1, 18), "expected ADD REPLICA or DROP REPLICA, found 'RENAME'"),
        ("ALTER INSTANCE x ADD REPLICA a", Position(1, 31), "expected a quoted value"),
        ("ALTER INSTANCE x ADD REPLICA a 'h'", Position(1, 32), "'h' is no address"),
        ("ALTER INSTANCE x DROP REPLICA", Position(1, 30), "expected a replica"),
        ("ALTER INSTANCE x DROP REPLICA a 'h:1'", Position(1, 33), "expected the end of the statement"),
        ("ALTER MATERIALIZED VIEW v SET x", Position(1, 1), "ALTER is not supported; CREATE OR REPLACE a view"),
        ("DROP INSTANCE x CASCADE", Position(1, 17), "DROP … CASCADE is not supported"),
        ("CREATE MATERIALIZED VIEW v IN x AS TABLE t", Position(1, 31), "expected INSTANCE, found 'x'"),
        ("CREATE MATERIALIZED VIEW v IN INSTANCE AS TABLE t", Position(1, 43), "expected AS, found 'TABLE'"),
        ("CREATE MATERIALIZED VIEW v IN INSTANCE 'x' AS TABLE t", Position(1, 40), "expected an instance"),
        (
            "CREATE MATERIALIZED VIEW v REFRESH ON COMMIT IN INSTANCE x AS TABLE t",
            Position(1, 46),
            "… IN is not supported; IN INSTANCE stands behind the name of the view",
        ),
        (
            "CREATE MATERIALIZED VIEW v KEEP HISTORY FOR '1 h' IN INSTANCE x AS TABLE t",
            Position(1, 51),
            "IN INSTANCE stands behind the name of the view",
        ),
        ("CREATE SOURCE s IN x FROM files", Position(1, 20), "expected INSTANCE, found 'x'"),
        ("CREATE SOURCE s IN INSTANCE (a INT) FROM files", Position(1, 29), "expected an instance, found '\\('"),
        ("CREATE SOURCE s IN INSTANCE x.y FROM files", Position(1, 30), "a name has one part"),
        ("CREATE SOURCE s IN INSTANCE FROM files", Position(1, 34), "expected FROM and a connector, found 'files'"),
        ("CREATE MATERIALIZATION m IN x INTO duckdb AS v", Position(1, 29), "expected INSTANCE, found 'x'"),
        ("CREATE MATERIALIZATION m IN INSTANCE INTO duckdb AS v", Position(1, 43), "expected INTO, found 'duckdb'"),
    ],
)
def test_a_wrong_instance_is_refused_where_it_is_wrong(text: str, where: Position, said: str) -> None:
    """Else its author looks for the mistake, or the environment waits for a replica that cannot be."""
    with pytest.raises(DefinitionError, match=said) as refused:
        parse(text)
    assert refused.value.position == where


SOURCE = "CREATE SOURCE … IN is not supported; IN INSTANCE stands behind the name of the source"
MATERIALIZATION = (
    "CREATE MATERIALIZATION … IN is not supported; IN INSTANCE stands behind the name of the materialization"
)
TABLE = (
    "CREATE TABLE … IN is not supported; a table is written by the environment; one FROM SOURCE runs where its source"
)
FED = "CREATE TABLE … FROM SOURCE … IN is not supported; a table runs where its source does"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CREATE SOURCE s (a INT) IN INSTANCE x FROM files", SOURCE),
        ("CREATE SOURCE s FROM files IN INSTANCE x", SOURCE),
        ("CREATE SOURCE s USING files IN INSTANCE x OPTIONS (path 'p')", SOURCE),
        ("CREATE SOURCE s USING files OPTIONS (path 'p') IN INSTANCE x", SOURCE),
        ("CREATE SOURCE s FROM files FORMAT JSON IN INSTANCE x", SOURCE),
        ("CREATE SOURCE s FROM files KEEP HISTORY FOR '1 h' IN INSTANCE x", SOURCE),
        ("CREATE MATERIALIZATION m INTO duckdb IN INSTANCE x AS v", MATERIALIZATION),
        ("CREATE MATERIALIZATION m INTO duckdb OPTIONS (path 'p') IN INSTANCE x AS v", MATERIALIZATION),
        ("CREATE MATERIALIZATION m INTO duckdb AS v IN INSTANCE x", MATERIALIZATION),
        ("CREATE MATERIALIZATION m INTO duckdb AS v TO t KEY (a) IN INSTANCE x", MATERIALIZATION),
        ("CREATE TABLE t IN INSTANCE x (a INT)", TABLE),
        ("CREATE TABLE t (a INT) IN INSTANCE x", TABLE),
        ("CREATE TABLE t (a INT) KEEP HISTORY FOR '1 h' IN INSTANCE x", TABLE),
        ("CREATE TABLE t IN INSTANCE x (a INT) FROM SOURCE s (REFERENCE 'r')", TABLE),
        ("CREATE TABLE t (a INT) FROM SOURCE s IN INSTANCE x (REFERENCE 'r')", FED),
        ("CREATE TABLE t (a INT) FROM SOURCE s (REFERENCE 'r') IN INSTANCE x", FED),
        ("CREATE TABLE t (a INT) FROM SOURCE s (REFERENCE 'r') KEEP HISTORY FOR '1 h' IN INSTANCE x", FED),
    ],
)
def test_an_instance_that_stands_elsewhere_is_refused_by_name(text: str, said: str) -> None:
    """Else its author does not learn where it stands, or believes that a table runs elsewhere than its source."""
    with pytest.raises(DefinitionError, match=said) as refused:
        parse(text)
    assert refused.value.position == Position(1, text.index("IN INSTANCE") + 1)


def test_a_replica_of_a_script_keeps_its_place() -> None:
    """Else an error about the second statement of a file names a line of the first."""
    _, added, dropped = (
        parse(each)
        for each in placed(
            "CREATE INSTANCE x REPLICAS ();\n ALTER INSTANCE x ADD REPLICA a 'h:1';\nALTER INSTANCE x DROP REPLICA b"
        )
    )
    assert isinstance(added, AddReplica)
    assert isinstance(dropped, DropReplica)
    assert (added.at, added.replica_at) == (Position(2, 17), Position(2, 31))
    assert (dropped.at, dropped.replica_at) == (Position(3, 16), Position(3, 31))
