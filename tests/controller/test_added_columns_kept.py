"""What a column that was added to a table holds stays, however its batches are merged, and in the next process too."""

from __future__ import annotations

from functools import partial

import pytest
from promoted import ONE, Location, held, project
from pyspark.sql import SparkSession

import strandline
from strandline.algebra.schema import Column, Schema
from strandline.controller.defining.apply import apply
from strandline.controller.defining.changing import tables
from strandline.controller.language.statements import parse
from strandline.controller.location.items import Table
from strandline.controller.preparing.planned import deployment
from strandline.errors import DefinitionError, Unavailable
from strandline.instance.tables import Change
from strandline.persist.shard.evolution import parse_schema
from strandline.testing.lists.list_engine import updates
from strandline.testing.simulation.kernel import run_sync


@pytest.mark.parametrize("again", [False, True], ids=["the same process", "the next process"])
def test_a_shard_has_the_columns_of_its_table_before_a_row_has_values_in_them(*, again: bool) -> None:
    """Damage: the next merge rewrites the table by its columns of before, and what the new ones hold is lost."""
    location = Location()
    process = location.run({"items": ONE["items"]})
    location.tick(process)
    statement = parse("ALTER TABLE items ADD COLUMN more INT")
    run_sync(tables.add_columns(process.core, statement))  # type: ignore[arg-type]
    if again:
        location.end(process)
        process = location.run({"items": ONE["items"].replace(")", ", more INT)")})
    table = process.core.catalog.one("items", Table, "table")
    assert Column("more", "int") in table.schema.columns
    state = process.core.client.known(table.shard)
    assert state is not None
    assert parse_schema(state.schema) == table.schema
    shards = run_sync(process.core.require_writing().transactions.shards())
    assert shards[table.shard] == table.schema.ddl, "the log opens it by the columns of before"


def test_a_project_whose_file_lacks_an_added_column_takes_nothing_back() -> None:
    """Damage: after one ALTER TABLE by hand the project never starts again, and its author drops the table."""
    location = Location()
    process = location.run({"items": ONE["items"], "wide": ONE["wide"]})
    location.tick(process)
    run_sync(tables.add_columns(process.core, parse("ALTER TABLE items ADD COLUMN more INT")))  # type: ignore[arg-type]
    defined = project({"items": ONE["items"], "wide": ONE["wide"]})
    assert run_sync(apply(process.core, defined)).refused == ()
    assert run_sync(deployment(process.core, defined, {}))["changes"] == []
    assert "more" in process.core.catalog.collection("items").schema.names


def test_a_file_may_add_a_column_where_a_statement_has_added_another_and_write_names_in_any_case() -> None:
    """Damage: the project never starts again; what it advises is to drop the table, with its rows."""
    location = Location()
    process = location.run({"t": "CREATE TABLE t (id INT, k INT)"})
    run_sync(tables.add_columns(process.core, parse("ALTER TABLE t ADD COLUMN c0 STRING")))  # type: ignore[arg-type]
    defined = project({"t": "CREATE TABLE t (ID INT, k INT, p INT)"})
    assert [each["what"] for each in run_sync(deployment(process.core, defined, {}))["changes"]] == ["alter"]
    run_sync(apply(process.core, defined))
    assert process.core.catalog.collection("t").schema.names == ("id", "k", "c0", "p")
    with pytest.raises(DefinitionError, match="'t': it was created with the columns"):
        run_sync(apply(process.core, project({"t": "CREATE TABLE t (id INT, k BIGINT)"})))


def test_a_project_whose_file_lacks_a_column_of_the_creation_is_refused() -> None:
    """Damage: a column is deleted from the file, nothing says that the table still has it, and its author waits."""
    location = Location()
    process = location.run({"items": ONE["items"].replace(")", ", last INT)")})
    run_sync(tables.add_columns(process.core, parse("ALTER TABLE items ADD COLUMN more INT")))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="'items': it was created with the columns"):
        run_sync(apply(process.core, project({"items": ONE["items"]})))


def test_what_a_table_cannot_hold_yet_is_refused_and_not_left_out() -> None:
    """Damage: a row is acknowledged, and its value in a column that was just added is gone."""
    location = Location()
    process = location.run({"items": ONE["items"], "t": "CREATE TABLE t (k INT)"})
    location.tick(process)
    core = process.core
    wider = Schema((Column("k", "int"), Column("more", "int")))
    widened = partial(tables._widened, present=core.catalog.one("t", Table, "table"), schema=wider, written="more INT")
    run_sync(core.catalogs.change(core.require_writing().epoch, widened))  # and this process could not follow
    rows = updates(wider, [{"k": 1, "more": 7, "__time": 0, "__diff": 1}])
    with pytest.raises(Unavailable, match="not open with all its columns yet"):
        run_sync(core.commit([Change(core.table("t"), rows, False, 1)], None))
    location.tick(process)
    run_sync(core.commit([Change(core.table("t"), rows, False, 1)], None))
    assert run_sync(held(core, "t", location.tick(process))) == {(1, 7): 1}


@pytest.mark.spark
def test_the_values_of_an_added_column_outlive_the_merges(spark: SparkSession) -> None:
    """Damage: every value that was written to the column is NULL after a few commits."""
    with strandline.open("memory://", spark=spark) as env:
        env.execute("CREATE TABLE t (id INT)")
        env.insert("t", [{"id": 0}])
        env.execute("ALTER TABLE t ADD COLUMN k INT")
        for n in range(8):
            env.insert("t", [{"id": 100 + n, "k": n}])
            env.tick()
        rows = env.query("SELECT id, k FROM t WHERE id >= 100").collect()
    assert sorted(map(tuple, rows)) == [(100 + n, n) for n in range(8)]
