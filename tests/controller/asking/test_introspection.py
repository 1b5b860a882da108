"""What queries see of the environment itself, and where that is refused.  Over lists, and once over Spark."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.controller.conftest import Place
from tests.controller.instances.apart import Site, site
from tests.controller.instances.test_subscribed import reader

from strandline.algebra.schema import Schema
from strandline.client.subscribing import Subscription
from strandline.controller.asking import reads
from strandline.controller.core import Core
from strandline.controller.defining.definitions import plan
from strandline.controller.holding import Hold
from strandline.controller.introspection.naming import refuse, substituted
from strandline.controller.introspection.relations import RELATIONS, Known
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import InstanceItem, Materialization, Source, SourceTable, Table, View
from strandline.errors import AsOfError, DefinitionError
from strandline.persist.handles.contents import Rows
from strandline.testing.lists.list_engine import listed

PAGES = Path(__file__).resolve().parents[3] / "docs"
COLUMNS = (("k", "bigint"),)
ALL = tuple(f"strandline.{name}" for name in RELATIONS)


class Asked:
    """The engine of a core, which notes what it is asked in the place of an answer."""

    def __init__(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        self.core = core
        self.text = ""
        self.rows: dict[str, list[dict[str, Any]]] = {}
        monkeypatch.setattr(core.engine, "answer", self._answer)

    async def _answer(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], given: Sequence[pa.Scalar] = ()
    ) -> tuple[pa.Schema, Rows]:
        self.text = sql
        self.rows = {name: list(listed(rows).rows) for name, (_, rows) in relations.items()}
        for name, (schema, rows) in relations.items():
            assert listed(rows).names == schema.names, name
        return pa.schema([]), next(iter(relations.values()))[1]

    async def ask(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of one relation."""
        await reads.query(self.core, f"SELECT * FROM strandline.{name}", None, Hold())
        (rows,) = self.rows.values()
        return rows


def opened(*replicas: str) -> AbstractAsyncContextManager[Site]:
    """Open a location with a view in an instance."""
    return site(*replicas)


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("SELECT * FROM strandline.steps", "SELECT * FROM __1        steps"),
        ("SELECT * FROM `Strandline` . `STEPS` s", "SELECT * FROM __1                    s"),
        ("SELECT * FROM strandline.\nsteps AS s", "SELECT * FROM __1        \n      AS s"),
        ("SELECT * FROM strandline.steps TABLESAMPLE (5 ROWS)", "SELECT * FROM __1              TABLESAMPLE (5 ROWS)"),
        ("SELECT steps.ms, strandline.steps.* FROM strandline.steps", None),
        ("WITH steps AS (SELECT * FROM strandline.steps) SELECT * FROM steps", None),
        ("SELECT 1 FROM a JOIN strandline.steps USING (k)", "SELECT 1 FROM a JOIN __1        steps USING (k)"),
        ("TABLE strandline.steps", "TABLE __1             "),
        (
            "FROM strandline.steps |> WHERE strandline.steps.ms > 5",
            "FROM __1              |> WHERE __1             .ms > 5",
        ),
        ("SELECT 'strandline.steps' FROM steps", "SELECT 'strandline.steps' FROM steps"),
        ("SELECT strandline.steps, strandline.steps.x FROM t AS strandline", "the same"),
        ("SELECT * FROM x.strandline.steps", "the same"),
        ("SELECT * FROM steps", "the same"),
    ],
)
def test_a_name_of_two_parts_becomes_one_that_spark_knows(text: str, read: str | None) -> None:
    """Damage: a column or a collection is taken for a relation, or an error points at another place of the text."""
    found, stand_ins = substituted(text)
    assert found == (text if read == "the same" else read or found)
    assert len(found) == len(text)
    assert [at for at, sign in enumerate(found) if sign == "\n"] == [at for at, s in enumerate(text) if s == "\n"]
    assert stand_ins == ({} if found == text else {"__1": "steps"})


def test_an_unknown_relation_is_named_with_what_is_like_it() -> None:
    """Damage: a typing error is a riddle, or reads another relation."""
    with pytest.raises(
        DefinitionError, match=r"no relation 'strandline.step'; did you mean 'strandline.steps'"
    ) as found:
        substituted("SELECT *\nFROM strandline.step")
    assert str(found.value.position) == "line 2, column 6"


@pytest.mark.parametrize(
    "text", [*ALL, "SELECT 1 FROM t WHERE k IN (SELECT 1 FROM strandline.steps)", "TABLE strandline.steps"]
)
def test_what_must_not_name_one_is_refused_where_it_does(text: str) -> None:
    """Damage: a view, a subscription or a change reads what has no history, and is wrong for ever."""
    with pytest.raises(DefinitionError, match="^it cannot read 'strandline.[a-z]+', which is computed") as found:
        refuse(text, "it cannot read")
    assert found.value.position is not None
    assert found.value.position.column == text.index("strandline") + 1
    refuse("SELECT strandline.steps FROM t AS strandline", "it cannot read")


# ---- rows -----------------------------------------------------------------------------------------------------------


def known() -> Known:
    """Return what is known of an environment that has everything."""
    items = (
        Table("T", COLUMNS, "s1"),
        Source("clicks", COLUMNS, "s2", "files", {}, "r", "p", instance="x"),
        SourceTable("visits", COLUMNS, "s3", source="clicks", reference="visits"),
        View("V", COLUMNS, "s4", "SELECT 1", ("t",), {"v_1": "s5"}, {}, instance="x"),
        Materialization("out", "duckdb", {}, (), "m"),
        InstanceItem("X", {"a": "a:1", "b": "b:1"}),
    )
    at = {"phase": "following", "since": 5, "upper": 2_000, "lag": {"ms": 7, "rows": 3}, "errors": {"rows": 0}}
    failing = {"rows": 2, "since": 1_000, "first": [{"file": "a.csv", "line": 3, "reason": "it has 2 fields"}]}
    status = {
        "collections": {
            "T": {**at, "notices": ["upstream has a column"]},
            "clicks": {**at, "upper": None, "lag": {"ms": 0, "rows": 0}, "errors": failing},
            "visits": {**at, "upper": None, "lag": {"ms": None, "rows": None}, "phase": "snapshotting"},
            "V": {**at, "upper": 2**62},
        },
        "materializations": {"out": {"position": 1_500, "lag": {"ms": 9}}},
        "instances": {
            "X": {
                "replicas": {
                    "a": {
                        "address": "a:1",
                        "incarnation": "i",
                        "obeys": True,
                        "reused": 4,
                        "replaced": {"its plan changed": 2},
                    },
                    "b": {"address": "b:1", "problem": "it was not seen yet"},
                }
            }
        },
        "problems": {"v": "no replica", "transactions": "silent"},
        "waiting": {"out": "it waits for 'V'"},
        "sources": {},
    }
    counted = {
        f"step/v/{name}": n for name, n in {"rows_read": 8, "ms": 12, "window/small": 1, "plan/fresh": 1}.items()
    }
    counted |= {"step/v/access/t by k": 2, "step/v/access/u by k": 2, "step/v/access/w": 0}
    return Known(status, Catalog(items={item.name.lower(): item for item in items}), counted)


def rows(name: str) -> list[tuple[Any, ...]]:
    """Return the rows of a relation over `known`, which must have its columns."""
    relation = RELATIONS[name]
    table = relation.table(known())
    assert tuple(table.column_names) == relation.schema.names
    return [tuple(row.values()) for row in table.to_pylist()]


def at(ms: int) -> datetime:
    """Return a time as Python's."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_frontiers_say_how_far_each_item_is() -> None:
    """Damage: what is done looks as if it had not begun, or a time beyond all calendars fails the query."""
    assert rows("frontiers") == [
        ("T", "table", None, "following", 5, 2_000, at(2_000), 7, 3),
        ("clicks", "source", "X", "following", 5, None, None, 0, 0),
        ("visits", "source table", "X", "snapshotting", 5, 0, None, None, None),
        ("V", "view", "X", "following", 5, 2**62, None, 7, 3),
        ("out", "materialization", None, None, None, 1_500, at(1_500), 9, None),
    ]


def test_steps_say_what_the_last_one_of_each_stage_cost() -> None:
    """Damage: a stage that has not stepped is left out, or one's costs are shown as another's."""
    assert rows("steps") == [
        ("V", "X", "v_1", None, None, None, None, None, None, None),
        ("V", "X", "v", 8, 12, "small", "fresh", 2, 0, 1),
    ]


def test_errors_problems_and_replicas_are_shown_as_status_has_them() -> None:
    """Damage: an alarm that is a query stays silent."""
    assert rows("errors") == [("clicks", "source", 2, 1_000, at(1_000), "a.csv, line 3: it has 2 fields")]
    assert rows("problems") == [("V", "view", "X", "no replica"), ("transactions", None, None, "silent")]
    assert rows("states") == [
        ("V", "view", "X", "problem", "no replica"),
        ("transactions", None, None, "problem", "silent"),
        ("out", "materialization", None, "waiting", "it waits for 'V'"),
        ("T", "table", None, "notice", "upstream has a column"),
    ]
    assert rows("replicas") == [
        ("X", "a", "a:1", True, None, "i"),
        ("X", "b", "b:1", False, "it was not seen yet", None),
    ]
    assert rows("reconciliations") == [
        ("X", "a", "reused", None, 4),
        ("X", "a", "replaced", "its plan changed", 2),
        ("X", "a", "dropped", None, 0),
        ("X", "a", "created", None, 0),
        ("X", "b", "reused", None, 0),
        ("X", "b", "dropped", None, 0),
        ("X", "b", "created", None, 0),
    ]


# ---- queries --------------------------------------------------------------------------------------------------------


def test_a_query_reads_them_beside_collections_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: only the process that writes can be asked, or what it says is of another moment."""

    async def body() -> None:
        async with opened("a", "b") as location:
            await location.tick()
            time = await location.tick()
            for core in (location.core, await reader(location)):
                await core.look()
                asked = Asked(core, monkeypatch)
                query = "SELECT * FROM items, strandline.frontiers f JOIN strandline.steps"
                await reads.query(core, query, None, Hold())
                assert asked.rows.keys() == {"items", "__0", "__1"}
                assert len(asked.rows["items"]) == 2
                uppers = {row["name"]: row["upper"] for row in asked.rows["__0"]}
                assert uppers == {"items": time + 1, "totals": time + 1}
                steps = [(row["view"], row["instance"], row["stage"]) for row in asked.rows["__1"]]
                assert steps[-1] == ("totals", "x", "totals")
                assert [row["running"] for row in await asked.ask("replicas")] == [True, True]
                found = {(row["replica"], row["outcome"]): row["count"] for row in await asked.ask("reconciliations")}
                assert found["a", "reused"] == 0
                assert [await asked.ask(name) for name in ("errors", "problems")] == [[], []]
            await core.close()
            await location.processes["a:1"].kill()
            await location.processes["b:1"].kill()
            await location.tick()
            (problem,) = await Asked(location.core, monkeypatch).ask("problems")
            assert (problem["name"], problem["instance"]) == ("totals", "x")
            assert "no replica of instance 'x' is connected" in problem["problem"]

    asyncio.run(body())


def test_what_has_no_history_is_read_now_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the present is shown as the past, is stored in a table, or is followed by a view that never changes."""

    async def body() -> None:
        async with opened("a") as location:
            time, core = await location.tick(), location.core
            Asked(core, monkeypatch)
            query = "SELECT name FROM strandline.frontiers"
            with pytest.raises(AsOfError, match=f"'strandline.frontiers' has no history, .* read at {time}"):
                await reads.query(core, query, time, Hold())
            with pytest.raises(DefinitionError, match="a change of a table cannot read .*column 18"):
                reads.relations_of(core, query)
            with pytest.raises(DefinitionError, match="a view cannot read .*column 18"):
                plan(core, "v", query)
            for what in (query, "strandline.frontiers"):
                with pytest.raises(DefinitionError, match="a subscription cannot follow 'strandline.*line 1"):
                    await Subscription.open(core, what, None, None)

    asyncio.run(body())


def test_asking_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an environment that is idle and watched writes at each look."""

    async def body() -> None:
        async with opened() as location:
            await location.core.tick()
            written = location.place.stored()
            asked = Asked(location.core, monkeypatch)
            for name in RELATIONS:
                await asked.ask(name)
            assert location.place.stored() == written

    asyncio.run(body())


# ---- documents and Spark --------------------------------------------------------------------------------------------


def test_the_page_has_every_relation_with_its_columns() -> None:
    """Damage: an operator asks for a column that is not there, or never learns of one."""
    found = re.findall(
        r"^\| `strandline\.(\w+)` \| [^|]+ \| (.+) \|$", (PAGES / "operations.md").read_text(), re.MULTILINE
    )
    columns = {name: tuple(re.findall(r"`(\w+)`", listed)) for name, listed in found}
    assert columns == {name: relation.schema.names for name, relation in RELATIONS.items()}


@pytest.mark.spark
def test_spark_answers_what_the_pages_ask_and_joins_them_with_collections(place: Place) -> None:
    """Damage: an example of the documents is refused, or an error points beside what is wrong."""
    pages = (PAGES / name for name in ("operations.md", "instances.md"))
    examples = [
        each for page in pages for each in re.findall(r'^strandline query "(.+)"$', page.read_text(), re.MULTILINE)
    ]
    assert len(examples) == 6
    with place.open() as env:
        env.execute("CREATE TABLE limits (name STRING, most_ms BIGINT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT name, count(*) AS n FROM limits GROUP BY name")
        env.insert("limits", [{"name": "v", "most_ms": 600_000}])
        time = env.tick()
        for each in examples:
            env.query(each).collect()
        joined = env.query(
            "SELECT frontiers.name, upper, upper_at, s.rows_read FROM strandline.frontiers "
            "JOIN limits l ON l.name = frontiers.name AND strandline.frontiers.lag_ms < l.most_ms "
            "JOIN strandline.steps s ON s.stage = l.name"
        )
        (row,) = joined.toArrow().to_pylist()
        assert row == {"name": "v", "upper": time + 1, "upper_at": at(time + 1), "rows_read": 1}
        assert env.query("TABLE strandline.errors").collect() == []
        with pytest.raises(DefinitionError, match=r"unknown column p.lag.*line 2, column 28"):
            env.query("SELECT 1 FROM strandline.problems p\nJOIN strandline.steps s ON p.lag = s.ms")
        with pytest.raises(DefinitionError, match=r"a view cannot read 'strandline.steps'.*line 2, column 15"):
            env.execute("CREATE MATERIALIZED VIEW w AS\nSELECT 1 FROM strandline.steps")
        with pytest.raises(DefinitionError, match=r"a change of a table cannot read 'strandline.problems'.*column 40"):
            env.execute("INSERT INTO limits SELECT name, 1 FROM strandline.problems")
        with place.open(read_only=True) as other:
            assert [row.name for row in other.query("SELECT name FROM strandline.frontiers").collect()] == [
                "limits",
                "v",
            ]
            with pytest.raises(DefinitionError, match=r"a subscription cannot follow 'strandline.frontiers'"):
                other.subscribe("strandline.frontiers")
