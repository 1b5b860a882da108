"""Tables, aliases, columns and fields of structs that share their names: changes and views mean what Spark means."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from strandline.client import Environment
from strandline.errors import DefinitionError

if TYPE_CHECKING:
    from tests.controller.conftest import Place

NAMES: Final = ("t", "a", "id", "r", "k", "x0")
"""Few, so that they coincide: also the aliases and variables in the texts of our own."""
SCALARS: Final = ("INT", "DOUBLE")
CHANGES: Final = 4
VIEWS: Final = 2


@dataclass(frozen=True)
class Town:
    """A table in an environment, and the same in plain Spark: one kind of value in all places, so that all compare."""

    rng: random.Random
    env: Environment
    spark: SparkSession
    name: str
    columns: dict[str, Any]

    @classmethod
    def make(cls, seed: int, env: Environment, spark: SparkSession) -> Town:
        """Make a table with a struct, which may be called as the table is, in both."""
        rng = random.Random(f"names {seed}")
        name = rng.choice(NAMES)
        columns: dict[str, Any] = {}
        for column in rng.sample(NAMES, 3):
            fields = {field: rng.choice(SCALARS) for field in rng.sample(NAMES, 2)}
            columns[column] = fields if column == name or rng.random() < 0.4 else rng.choice(SCALARS)
        if columns.keys().isdisjoint({name}):  # the reported case is among them always
            columns[name] = dict.fromkeys((name, *columns), "DOUBLE")
        town = cls(rng, env, spark, name, columns)
        env.execute(f"CREATE TABLE {name} ({town.ddl})")
        town.show([])
        return town

    @property
    def ddl(self) -> str:
        """The columns, as a definition writes them."""
        return ", ".join(f"{name} {_type(kind)}" for name, kind in self.columns.items())

    def show(self, rows: list[Row]) -> None:
        """Let plain Spark know what the table holds."""
        self.spark.createDataFrame(rows, self.ddl).createOrReplaceTempView(self.name)

    def held(self, name: str) -> list[Row]:
        """Return what a collection of the environment holds."""
        return self.env.query(f"SELECT * FROM {name}").collect()

    def alias(self) -> str:
        """Return how a statement calls the table: nothing, which is its name, or another one."""
        return self.rng.choice(("", *NAMES))

    def reference(self, alias: str) -> str:
        """Return a number of a row of the table as ``alias``: of a column, or a field, with or without a qualifier."""
        column = self.rng.choice(list(self.columns))
        kind = self.columns[column]
        path = [column, self.rng.choice(list(kind))] if isinstance(kind, dict) else [column]
        path = [alias, *path] if self.rng.random() < 0.5 else path
        return ".".join(path) if self.rng.random() < 0.7 else f"({path[0]})" + "".join(f".{each}" for each in path[1:])

    def condition(self, alias: str) -> str:
        """Return a condition that holds for some rows."""
        return f"{self.reference(alias)} % 3 = {self.rng.randrange(3)}"

    def row(self) -> str:
        """Return values for a row."""
        number = lambda: str(self.rng.choice((0, 1, 2, 3, "-0.0", "NULL")))  # noqa: E731
        values = []
        for kind in self.columns.values():
            if isinstance(kind, dict):
                fields = ", ".join(f"'{name}', CAST({number()} AS {each})" for name, each in kind.items())
                values.append(f"named_struct({fields})")
            else:
                values.append(f"CAST({number()} AS {kind})")
        return f"({', '.join(values)})"

    def change(self) -> tuple[str, str]:
        """Return a statement, and the query of what the table holds after it."""
        alias = self.alias()
        called, known = (f"{self.name} AS {alias}", alias) if alias else (self.name, self.name)
        where = self.condition(known)
        match self.rng.randrange(3):
            case 0:
                return (
                    f"DELETE FROM {called} WHERE {where}",
                    f"SELECT * FROM {called} WHERE NOT coalesce({where}, false)",
                )
            case 1:
                columns = [name for name, kind in self.columns.items() if not isinstance(kind, dict)]
                column = self.rng.choice(columns or list(self.columns))
                value = self.reference(known) if columns else f"named_struct{self._fields(column, known)}"
                kept = ", ".join(
                    f"CAST(CASE WHEN {where} THEN {value} ELSE {name} END AS {_type(self.columns[name])}) AS {name}"
                    if name == column
                    else name
                    for name in self.columns
                )
                return f"UPDATE {called} SET {column} = {value} WHERE {where}", f"SELECT {kept} FROM {called}"
            case _:
                query = f"SELECT {', '.join(self.columns)} FROM {called} WHERE {where}"
                return f"INSERT INTO {self.name} {query}", f"SELECT * FROM {self.name} UNION ALL {query}"

    def _fields(self, column: str, alias: str) -> str:
        fields = (f"'{name}', CAST({self.reference(alias)} AS {kind})" for name, kind in self.columns[column].items())
        return f"({', '.join(fields)})"

    def view(self) -> str:
        """Return a view's text: a filter, groups, or a join of the table with itself."""
        alias = self.alias()
        called, known = (f"{self.name} AS {alias}", alias) if alias else (self.name, self.name)
        one, other = self.reference(known), self.reference(known)
        match self.rng.randrange(4):
            case 0:
                return f"SELECT {one} AS one, {known}.* FROM {called} WHERE {self.condition(known)}"
            case 1:
                return f"SELECT {one} AS a, count({other}) AS n, max({other}) AS m FROM {called} GROUP BY {one}"
            case 2:
                second = self.rng.choice([each for each in NAMES if each != known])
                two = self.reference(second)
                return f"SELECT {one} AS a, {two} AS b FROM {called} JOIN {self.name} AS {second} ON {one} = {two}"
            case _:
                inner = f"SELECT 1 FROM {self.name} AS {self.rng.choice(NAMES)} WHERE {self.condition(known)}"
                return f"SELECT {one} AS {self.rng.choice(NAMES)} FROM {called} WHERE EXISTS ({inner})"


def _type(kind: Any) -> str:
    if isinstance(kind, dict):
        return f"STRUCT<{', '.join(f'{name}: {each}' for name, each in kind.items())}>"
    return str(kind)


def told(rows: list[Row]) -> Counter[str]:
    """Return rows that can be compared: zero has no sign, as where it is stored."""
    return Counter(repr(row).replace("-0.0", "0.0") for row in rows)


@contextmanager
def both(statement: str) -> Iterator[None]:
    """Say which statement it is about."""
    try:
        yield
    except Exception as error:
        error.add_note(statement)
        raise


@pytest.mark.spark
@pytest.mark.parametrize("field", ["id", "a b`c'd"])
def test_a_struct_that_is_called_as_its_table_is_can_be_deleted_and_updated(place: Place, field: str) -> None:
    """Damage: the digest of a row is of other values than its own, so its deletion is refused, or is another row's."""
    quoted = "`" + field.replace("`", "``") + "`"
    with place.open() as env:
        env.execute(f"CREATE TABLE t ({quoted} DOUBLE, t STRUCT<{quoted}: DOUBLE>)")
        env.insert("t", [{field: 1.0, "t": {field: 7.0}}, {field: 2.0, "t": {field: 1.0}}])
        env.execute(f"DELETE FROM t WHERE {quoted} = 1")
        env.execute(f"UPDATE t SET {quoted} = 3")
        (row,) = env.query("SELECT * FROM t").collect()
        assert (row[0], row[1][0]) == (3.0, 1.0)


@pytest.mark.spark
@pytest.mark.time_limit(900)
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=pytest.mark.slow)], ids=["few", "many"])
def test_changes_and_views_over_coinciding_names_mean_what_spark_means(
    place: Place, spark: SparkSession, seeds: range
) -> None:
    """Damage: a statement changes other rows than it names, or is refused; a view shows a field for a column."""
    refused = done = 0
    for seed in seeds:
        with place.open() as env:
            town = Town.make(seed, env, spark)
            env.execute(f"INSERT INTO {town.name} VALUES {', '.join(town.row() for _ in range(6))}")
            views: dict[str, str] = {}
            for number in range(VIEWS):
                text = town.view()
                town.show(town.held(town.name))
                try:
                    spark.sql(text).collect()
                except PySparkException:
                    refused += 1
                    with both(text), pytest.raises(DefinitionError):
                        env.execute(f"CREATE MATERIALIZED VIEW v{number} AS {text}")
                else:
                    with both(text):
                        env.execute(f"CREATE MATERIALIZED VIEW v{number} AS {text}")
                    views[f"v{number}"] = text
            for _ in range(CHANGES):
                statement, meaning = town.change()
                town.show(town.held(town.name))
                try:
                    wanted = spark.sql(meaning).collect()
                except PySparkException:
                    refused += 1
                    with both(statement), pytest.raises(DefinitionError):
                        env.execute(statement)
                    continue
                done += 1
                with both(f"{statement}: {town.ddl}"):
                    env.execute(statement)
                    assert told(town.held(town.name)) == told(wanted)
            env.tick()
            town.show(town.held(town.name))
            for name, text in views.items():
                with both(f"{text}: {town.ddl}"):
                    assert told(town.held(name)) == told(spark.sql(text).collect())
            for name in views:
                env.execute(f"DROP MATERIALIZED VIEW {name}")
            env.execute(f"DROP TABLE {town.name}")
            spark.catalog.dropTempView(town.name)
    assert done >= len(seeds) * CHANGES // 2, (done, refused)
