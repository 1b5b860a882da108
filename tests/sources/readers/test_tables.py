"""A table of another system, or a load generator, becomes a view that is what plain Spark says of the same rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from iceberg_lake import IcebergLake
from pyiceberg.types import StringType

import strandline
from strandline.engine.files.decoder import SparkFiles
from strandline.sources.readers import tabular

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, kind STRING, amount DECIMAL(12,2), weight DOUBLE, at TIMESTAMP"
VIEW = "SELECT kind, count(*) AS n, sum(amount) AS amount, max(at) AS newest FROM sales GROUP BY kind"


def rows(ids):
    """Sales with these ids."""
    ids = np.asarray(list(ids), np.int64)
    return pa.table(
        {
            "id": ids,
            "kind": pa.array([f"k{n % 7}" if n % 11 else None for n in ids.tolist()], pa.string()),
            "amount": pa.array(ids * 100, pa.int64()).cast(pa.decimal128(20, 0)).cast(pa.decimal128(12, 2)),
            "weight": np.where(ids % 3 == 0, -0.0, ids / 3),
            "at": pa.array(ids * 1_000_003, pa.timestamp("us", "UTC")),
        }
    )


def wider(found):
    """The same rows with a column more."""
    return found.append_column("note", pa.array([f"n{n}" for n in range(found.num_rows)]))


def held(env):
    """Return the rows of the source and of the view, and hold that the view is what its query says."""
    env.tick(wait=True)
    assert env.status()["problems"] == {}
    assert env.verify("by_kind").ok
    return env.query("SELECT * FROM sales").toArrow(), env.query("SELECT * FROM by_kind").toArrow()


def same_rows(found, wanted):
    """Whether two tables have the same rows, each as often."""
    names = sorted(found.column_names)
    tables = [Counter(tuple(row[name] for name in names) for row in table.to_pylist()) for table in (found, wanted)]
    return tables[0] == tables[1]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("feed", ["false", "true"])
def test_a_delta_table_becomes_a_view(spark, tmp_path, feed):
    """Damage: the view of a Delta table has a row too many, or lacks one."""
    table = str(tmp_path / "sales")
    write_deltalake(table, rows(range(100)), configuration={"delta.enableChangeDataFeed": feed})

    def reopened():
        return strandline.open(f"file://{tmp_path}/here", spark=spark)

    def wanted():
        return DeltaTable(table).to_pyarrow_table()

    with reopened() as env:
        env.execute(f"CREATE SOURCE sales ({COLUMNS}) USING delta OPTIONS (path '{table}')")
        env.execute(f"CREATE MATERIALIZED VIEW by_kind AS {VIEW}")
        assert same_rows(held(env)[0], wanted())
        write_deltalake(table, rows(range(90, 200)), mode="append")
        assert same_rows(held(env)[0], wanted())
        DeltaTable(table).update({"amount": "amount + 1"}, predicate="id % 10 = 3")
        DeltaTable(table).delete("id % 4 = 1")
        assert same_rows(held(env)[0], wanted())
        before = env.status()["collections"]["sales"]["read_records"]
        DeltaTable(table).delete("id = 0")
        assert same_rows(held(env)[0], wanted())
        assert env.status()["collections"]["sales"]["read_records"] == before + 1, "what cancels is not stored"
        DeltaTable(table).optimize.compact()
        assert same_rows(held(env)[0], wanted())
        assert env.status()["collections"]["sales"]["read_records"] == before + 1
        env.execute("ALTER SOURCE sales SET (evolve 'add')")
        write_deltalake(table, wider(rows(range(500, 510))), mode="append", schema_mode="merge")
        found, _ = held(env)
        assert same_rows(found, wanted())
        assert found.column_names[-1] == "note"
        DeltaTable(table).delete("id = 505 OR id = 12")
        assert same_rows(held(env)[0], wanted())
        write_deltalake(table, rows(range(5)), mode="overwrite", schema_mode="merge")
    with reopened() as env:
        found, view = held(env)
        assert same_rows(found, wanted())
        assert view.num_rows == 5


def test_an_iceberg_table_becomes_a_view(spark, tmp_path):
    """Damage: the view of an Iceberg table has a row too many, or lacks one."""
    lake = IcebergLake(tmp_path / "sales")
    lake.create(rows(range(100)))

    def reopened():
        return strandline.open(f"file://{tmp_path}/here", spark=spark)

    with reopened() as env:
        env.execute(f"CREATE SOURCE sales ({COLUMNS}) USING iceberg OPTIONS (path '{lake.root}')")
        env.execute(f"CREATE MATERIALIZED VIEW by_kind AS {VIEW}")
        assert same_rows(held(env)[0], lake.rows())
        lake.stored().append(rows(range(90, 200)))
        assert same_rows(held(env)[0], lake.rows())
        lake.stored().delete("id < 40")
        lake.stored().overwrite(rows([7, 7]), "id > 180")
        assert same_rows(held(env)[0], lake.rows())
        with lake.stored().update_schema() as update:
            update.add_column("note", StringType())
        lake.stored().append(wider(rows(range(500, 510))))
        assert same_rows(held(env)[0], lake.rows())
        assert "ALTER SOURCE `sales` ADD COLUMNS (`note` string)" in str(env.status()["collections"]["sales"])
        env.execute("ALTER SOURCE sales ADD COLUMN note STRING")
        lake.stored().delete("id == 505")
        found, _ = held(env)
        assert same_rows(found, lake.rows())
        assert found["note"].null_count < found.num_rows
        lake.stored().overwrite(rows(range(5)))
    with reopened() as env:
        found, view = held(env)
        assert same_rows(found, lake.rows())
        assert view.num_rows == 5


@pytest.mark.drawn(2)
@pytest.mark.parametrize("system", ["delta", "iceberg"])
def test_large_plain_files_are_read_by_spark_and_the_others_here(spark, tmp_path, system, monkeypatch):
    """Damage: rows differ by the way in which a file is read, or all rows of a lake pass through this process."""
    many = rows(range(20_000))
    if system == "delta":
        write_deltalake(str(tmp_path / "sales"), many)
        path = tmp_path / "sales"
    else:
        lake = IcebergLake(tmp_path / "sales")
        lake.create(many)
        path = lake.root
    decoded = []
    for name, least in (("here", 1 << 40), ("there", 1)):
        monkeypatch.setattr(tabular, "PLAIN_BYTES_MIN", least)
        with strandline.open(f"file://{tmp_path}/{name}", spark=spark) as env:
            decode = SparkFiles.decode

            async def counted(self, files, *rest, decode=decode, **named):
                decoded.append(len(files))
                return await decode(self, files, *rest, **named)

            with monkeypatch.context() as patch:
                patch.setattr(SparkFiles, "decode", counted)
                env.execute(f"CREATE SOURCE sales ({COLUMNS}) USING {system} OPTIONS (path '{path}')")
                env.execute(f"CREATE MATERIALIZED VIEW by_kind AS {VIEW}")
                found, _ = held(env)
                assert same_rows(found, many)
                if system == "delta":
                    DeltaTable(str(path)).delete("id >= 10000")
                else:
                    lake.stored().delete("id >= 10000")
                found, _ = held(env)
                assert found.num_rows == 10_000
                assert bool(decoded) == (name == "there")
                if system == "delta":
                    DeltaTable(str(path)).restore(0)
                else:
                    lake.stored().append(many.slice(10_000))


def test_a_load_generator_becomes_a_view(spark, tmp_path):
    """Damage: rows of a generator come twice or not at all when an environment is opened again."""
    found = []
    for _ in range(2):
        with strandline.open(f"file://{tmp_path}/here", spark=spark) as env:
            if not found:
                env.execute("CREATE SOURCE ticks (n BIGINT) USING counter OPTIONS (every '5ms', keep '40')")
                env.execute(
                    "CREATE MATERIALIZED VIEW all_of_it AS SELECT min(n) AS a, max(n) AS b, count(*) AS c FROM ticks"
                )
                env.tick(wait=True)
            for _ in range(3):
                env.tick(wait=True)
                assert env.verify("all_of_it").ok
                (row,) = env.query("SELECT * FROM all_of_it").toArrow().to_pylist()
                found.append((row["a"], row["b"], row["c"]))
    assert found == sorted(found)
    assert all(c == min(b, 40) and a == max(1, b - 39) for a, b, c in found if c)
    assert found[-1][2] == 40


def test_the_tables_of_a_bank_are_fed_by_one_source(spark, tmp_path):
    """Damage: a view over two tables of one source sees a part of a transfer, or an account too late."""
    with strandline.open(f"file://{tmp_path}/here", spark=spark) as env:
        env.execute("CREATE SOURCE bank FROM BANK (every = '2ms', accounts = '5')")
        env.execute("CREATE TABLE accounts (id BIGINT, owner STRING) FROM SOURCE bank (REFERENCE 'accounts')")
        env.execute("CREATE TABLE moves (account BIGINT, amount BIGINT) FROM SOURCE bank (REFERENCE 'transfers')")
        env.execute("""CREATE MATERIALIZED VIEW balances AS SELECT a.id, sum(m.amount) balance
            FROM accounts a JOIN moves m ON a.id = m.account GROUP BY a.id""")
        found = 0
        while found < 5:
            env.tick(wait=True)
            assert env.status()["problems"] == {}
            rows = env.query("SELECT * FROM balances").toArrow()
            assert sum(rows["balance"].to_pylist()) == 0
            found = rows.num_rows
        assert env.verify("balances").ok
        with pytest.raises(strandline.errors.DefinitionError, match="no table 'odd'; it has accounts, transfers"):
            env.execute("CREATE TABLE odd (id BIGINT) FROM SOURCE bank (REFERENCE 'odd')")
