"""What a view's text becomes: the plan's shape, and what is refused, by name and place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlglot import TokenType, exp
from sqlglot.parsers.spark import SparkParser

from strandline.algebra.nodes import Constant, Filter, Get, Join, Node, Opaque, Reduce, UnionAll, children
from strandline.algebra.scalar import Faithful, scalar
from strandline.algebra.schema import Column, Schema, quote
from strandline.compute.explain import explain
from strandline.compute.plan import sql as sql_module
from strandline.compute.plan.query import Queries
from strandline.compute.plan.view import plan_view
from strandline.compute.stage import rehearse, split
from strandline.engine.sql.rendering import render
from strandline.errors import DefinitionError, Position

pytestmark = pytest.mark.spark


def nodes(plan: Node, kind: type) -> list[Any]:
    """Return the nodes of a kind in a plan, from the root on."""

    def walk(node: Node) -> Iterator[Node]:
        yield node
        for below in children(node):
            yield from walk(below)

    return [node for node in walk(plan) if isinstance(node, kind)]


@pytest.mark.parametrize(
    ("sql", "reductions"),
    [
        ("SELECT shop, count(*) AS n FROM sales GROUP BY shop ORDER BY n DESC LIMIT 20", 1),
        (
            (
                "SELECT n, m FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop)"
                " LEFT JOIN (SELECT city, max(size) AS m FROM shops GROUP BY city) ON shop < city"
            ),
            2,
        ),
        (
            (
                "SELECT shop, n FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop) g"
                " WHERE n > (SELECT avg(size) FROM shops h WHERE h.city < g.shop)"
            ),
            1,
        ),
        ("SELECT shop, rank() OVER (ORDER BY count(*)) AS r FROM sales GROUP BY shop", 1),
    ],
)
def test_what_has_no_rule_is_recomputed_over_what_has_one(sql: str, reductions: int, laboratory: Any) -> None:
    """Damage: one ORDER BY at the top would make every tick scan the base tables."""
    plan = laboratory.plan(sql).plan
    (opaque,) = nodes(plan, Opaque)
    assert len(nodes(opaque, Reduce)) == reductions
    assert len(nodes(plan, Reduce)) == reductions


def test_ties_of_a_top_k_are_broken_by_the_whole_row(laboratory: Any) -> None:
    """Damage: two replicas would keep different rows of a tie, and correct each other for ever."""
    (opaque,) = nodes(laboratory.plan("SELECT shop, qty, price FROM sales ORDER BY qty DESC LIMIT 3").plan, Opaque)
    assert opaque.picks
    assert opaque.top
    assert "ORDER BY `qty_2` DESC, `shop_2`, `qty_2`, `price_2` LIMIT 3" in opaque.sql


def test_an_order_without_a_limit_is_dropped(laboratory: Any) -> None:
    """Damage: a view written with an ORDER BY would be recomputed for nothing."""
    assert nodes(laboratory.plan("SELECT shop FROM sales ORDER BY qty").plan, Opaque) == []


def test_inner_joins_of_every_spelling_are_one_join(laboratory: Any) -> None:
    """Damage: intermediate joins would be computed for each term of the next one."""
    sql = (
        "SELECT s.qty FROM sales s JOIN shops h USING (shop) CROSS JOIN products p, shops g WHERE p.product = s.product"
    )
    (join,) = nodes(laboratory.plan(sql).plan, Join)
    assert len(join.inputs) == 4
    assert len(join.equal) == 2


def test_only_columns_that_the_text_names_are_read(laboratory: Any) -> None:
    """Damage: a recomputed query would compare and count columns that cannot matter."""
    (get,) = nodes(laboratory.plan("SELECT shop, count(*) AS n FROM sales GROUP BY shop").plan, Get)
    assert [own for _, own in get.columns] == ["shop"]


def test_a_common_table_expression_shadows_a_collection(laboratory: Any) -> None:
    """Damage: the view would read another relation than its author meant."""
    view = laboratory.plan("WITH shops AS (SELECT 1 AS size) SELECT size FROM shops")
    assert view.imports == ()
    assert nodes(view.plan, Constant)


def test_sides_of_a_union_have_the_type_of_the_whole(laboratory: Any) -> None:
    """Damage: a step that sees the changes of one side only would write another type."""
    view = laboratory.plan("SELECT qty AS v FROM sales UNION ALL SELECT units FROM sales")
    assert view.schema.ddl == "`v` bigint"
    (union,) = nodes(view.plan, UnionAll)
    assert "CAST" in repr(union.inputs[0])


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT shop, count(*) AS n FROM sales GROUP BY shop HAVING count(*) > 1", ("shop",)),
        ("SELECT count(*) AS n FROM sales GROUP BY shop", None),
        ("SELECT count(*) AS n FROM sales", ()),
        ("SELECT DISTINCT shop, qty AS q FROM sales", ("shop", "q")),
        ("SELECT shop, count(*) AS n FROM sales GROUP BY shop ORDER BY n LIMIT 3", ("shop",)),
        ("SELECT shop FROM sales", None),
        ("SELECT shop, explode(array(1, n)) AS e FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop)", None),
    ],
)
def test_a_key_is_found_where_the_shape_gives_one(sql: str, key: tuple[str, ...] | None, laboratory: Any) -> None:
    """Damage: an endpoint would overwrite rows that only look the same, or could not update any."""
    assert laboratory.plan(sql).key == key


@pytest.mark.parametrize(
    ("sql", "words", "position"),
    [
        ("SELECT shop,\n  rand() AS r FROM sales", "rand", Position(2, 3)),
        ("SELECT shop FROM sales WHERE day < current_date", "current_date", Position(1, 36)),
        ("SELECT current_timestamp() AS t", "current_timestamp", Position(1, 8)),
        ("SELECT shop, first(qty) AS q FROM sales GROUP BY shop", "min", Position(1, 14)),
        ("SELECT collect_list(qty) AS q FROM sales", "array_sort", Position(1, 8)),
        ("SELECT shop FROM sales TABLESAMPLE (10 PERCENT)", "TABLESAMPLE", Position(1, 18)),
        ("SELECT shop FROM salse", "did you mean sales", Position(1, 18)),
        ("SELECT shop, quantity FROM sales", "quantity", Position(1, 14)),
        ("SELECT shop\nFORM sales WHERE", "", None),
        ("SELECT listagg(shop) AS l FROM sales", "WITHIN GROUP", Position(1, 8)),
        (
            "SELECT shop, (SELECT max(size) FROM shops),\n  (SELECT max(size) FROM shops) FROM sales",
            "write (SELECT MAX(size) FROM shops) AS",
            Position(2, 11),
        ),
        ("SELECT qty, qty + 1 AS Qty FROM sales", "write qty + 1 AS", Position(1, 19)),
        ("SELECT shop, s.* FROM sales s", "write output 2 AS", Position(1, 16)),
        ("SELECT shop FROM sales WHERE qty IN (SELECT * FROM (SELECT size FROM shops) LIMIT 1)", "LIMIT", None),
    ],
)
def test_what_is_refused_is_named_with_its_place(
    sql: str, words: str, position: Position | None, laboratory: Any
) -> None:
    """Damage: an indefinite view would never agree with itself, or an author would look for the mistake by hand."""
    with pytest.raises(DefinitionError) as refused:
        laboratory.plan(sql)
    assert words in refused.value.message
    assert refused.value.position is not None
    if position is not None:
        assert refused.value.position == position


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT upper(shop) AS shop, count(*) AS n FROM sales GROUP BY shop HAVING shop = 'A'",
        "SELECT upper(shop) AS shop, qty FROM sales QUALIFY rank() OVER (ORDER BY shop) < 3",
    ],
)
def test_a_name_that_is_an_alias_and_a_column_is_left_to_spark(sql: str, laboratory: Any) -> None:
    """Damage: the view would filter by another value than Spark does."""
    (opaque,) = nodes(laboratory.plan(sql).plan, Opaque)
    assert "an alias and a column" in opaque.reason


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT count(*) AS n FROM (SELECT shop, qty FROM sales) PIVOT (sum(qty) FOR shop IN ('a'))", "PIVOTS"),
        ("SELECT count(*) AS n FROM ((SELECT shop, qty FROM sales)) UNPIVOT (v FOR m IN (qty))", "PIVOTS"),
        ("SELECT count(*) AS n FROM VALUES (1), (2) AS t(a) PIVOT (max(a) FOR a IN (1))", "PIVOTS"),
        ("SELECT count(*) AS n FROM ((SELECT shop FROM sales) x JOIN sales h ON x.shop = h.shop)", "JOINS"),
    ],
)
def test_what_stands_behind_a_relation_is_not_passed_over(sql: str, what: str, laboratory: Any) -> None:
    """Damage: the view would be of the rows before the PIVOT, or of one side of the join."""
    (opaque,) = nodes(laboratory.plan(sql).plan, Opaque)
    assert what in opaque.reason


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT shop, array_sort(collect_list(qty)) AS q FROM sales GROUP BY shop",
        "SELECT shop, first_value(qty) OVER (PARTITION BY shop ORDER BY qty) AS q FROM sales",
        "SELECT 'rand()' AS r, qty AS now FROM sales",
    ],
)
def test_what_can_be_made_definite_is_accepted(sql: str, laboratory: Any) -> None:
    """Damage: queries with a definite value would be refused for a word in them."""
    assert laboratory.plan(sql).schema


def test_text_that_only_spark_can_read_is_recomputed_whole(laboratory: Any) -> None:
    """Damage: a query that Spark accepts would be refused because we cannot parse it."""
    view = laboratory.plan("FROM sales |> AGGREGATE sum(qty) AS s GROUP BY shop |> WHERE s > 1")
    assert isinstance(view.plan, Opaque)
    assert view.notes


def test_a_column_called_like_a_unit_is_not_taken_for_one(laboratory: Any) -> None:
    """Damage: `timestampdiff(DAY, …)` over a table with a column `day` would not run."""
    view = laboratory.plan("SELECT timestampdiff(DAY, day, DATE'2024-02-01') AS d, day FROM sales")
    assert nodes(view.plan, Opaque) == []


def test_the_schema_is_sparks_own(laboratory: Any) -> None:
    """Damage: a view's columns would be called or typed otherwise than in Spark."""
    view = laboratory.plan("SELECT sum(price), avg(price) AS m, count(*), 1 FROM sales")
    assert view.schema == Schema(
        (
            Column("sum(price)", "decimal(18,2)"),
            Column("m", "decimal(12,6)"),
            Column("count(1)", "bigint"),
            Column("1", "int"),
        )
    )


@pytest.mark.parametrize(
    ("planted", "sql"),
    [
        ("ARRAY_CONSTRUCTORS", "SELECT array(qty, 7)[0] AS a FROM sales"),
        ("TERM", "SELECT qty - size AS d FROM sales JOIN shops USING (shop)"),
        ("TERM", "SELECT shop FROM sales GROUP BY shop HAVING sum(qty) - 1 > 2"),
    ],
)
def test_a_rewrite_by_the_parser_is_seen_and_the_authors_own_text_is_recomputed(
    planted: str, sql: str, laboratory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a mistake of the parser's is a wrong answer that nothing compares with what the author wrote."""
    wrong = {"ARRAY_CONSTRUCTORS": SparkParser.ARRAY_CONSTRUCTORS, "TERM": SparkParser.TERM | {TokenType.DASH: exp.Add}}
    monkeypatch.setattr(sql_module, "REMEMBERED_MAX", -1)  # what either parser reads is not for the other
    monkeypatch.setattr(Faithful.Parser, planted, wrong[planted])
    laboratory.forget(sql)
    view = laboratory.plan(sql)
    laboratory.forget(sql)
    assert isinstance(view.plan, Opaque)
    assert view.plan.sql == sql
    assert "otherwise than Spark" in str(explain(view, split(view, "v")))
    monkeypatch.undo()
    assert not isinstance(laboratory.plan(sql).plan, Opaque)


def test_a_mistake_of_the_planners_is_no_mistake_of_the_view(laboratory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an exception that is not ours stops the author at CREATE with a traceback."""

    def fail(*_: object) -> None:
        raise AssertionError("planted")

    sql = "SELECT qty + 7 AS q FROM sales"
    monkeypatch.setattr(Queries, "plan", fail)
    view = laboratory.plan(sql)
    laboratory.forget(sql)
    assert isinstance(view.plan, Opaque)
    assert "planted" in view.plan.reason


def test_a_step_that_spark_would_refuse_is_refused_when_the_view_is_defined(laboratory: Any) -> None:
    """Damage: CREATE accepts a view whose every tick fails."""
    view = laboratory.plan("SELECT shop, qty + 1 AS q FROM sales")
    stages = split(view, "v")
    rehearse(stages, laboratory.catalog, laboratory.analyst)
    (stage,) = stages
    wrong = (
        replace(stage, schema=schema_of(q="int", shop="int")),
        replace(stage, plan=Filter(stage.plan, scalar("no_such_column > 1"))),
    )
    for broken in wrong:
        with pytest.raises(DefinitionError, match="a step of") as refused:
            rehearse([broken], laboratory.catalog, laboratory.analyst)
        assert refused.value.position == Position(1, 1)


class Noting:
    """The analyst, with the texts that it is asked about and the steps that it is to rehearse."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.texts: list[str] = []
        self.steps: list[tuple[Node, Mapping[str, Schema]]] = []

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        """See `Analyst.schema_of`."""
        self.texts.append(sql)
        found: Schema = self._inner.schema_of(sql, relations, ours=ours)
        return found

    def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
        """See `Analyst.rehearse`."""
        self.steps += [(step, frames) for step in steps]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_step_reaches_nothing_that_the_text_does_not(laboratory: Any) -> None:
    """Damage: a step reads a file of the server, for steps are rehearsed without a look at what they reach."""
    for sql in (
        "SELECT s.shop, t.city, s.qty + 1 AS q FROM sales s LEFT JOIN shops t ON s.shop = t.city",
        "SELECT shop, sum(qty) AS n, max(CAST(qty AS STRING)) AS m FROM sales GROUP BY shop HAVING count(*) > 1",
        "SELECT shop, row_number() OVER (PARTITION BY shop ORDER BY qty) AS n FROM sales",
        "SELECT from_xml(shop, 'a INT', map('mode', 'PERMISSIVE')).a AS a, explode(array(qty)) AS e FROM sales",
        "SELECT DISTINCT shop FROM sales WHERE EXISTS (SELECT 1 FROM shops WHERE city = shop) ORDER BY shop LIMIT 3",
        "SELECT shop FROM sales EXCEPT SELECT city FROM shops",
    ):
        noting = Noting(laboratory.analyst)
        stages = split(plan_view(sql, laboratory.catalog, noting), "v")
        rehearse(stages, laboratory.catalog, noting)
        assert noting.steps
        for step, frames in noting.steps:
            views = {name: f"view_{n}" for n, name in enumerate(frames)}
            updates = "SELECT *, 0L AS __time, 1L AS __diff FROM"
            defined = ", ".join(f"frame_{n} AS ({updates} view_{n})" for n in range(len(frames)))
            text = render(step, {name: f"frame_{n}" for n, name in enumerate(frames)})
            read = {views[name]: schema for name, schema in frames.items()}
            columns = ", ".join(map(quote, step.names))
            laboratory.analyst.schema_of(f"WITH {defined} SELECT {columns} FROM ({text})", read)  # which looks


@pytest.mark.parametrize(
    "reaching",
    [
        "SELECT java_method('java.lang.System', 'getenv', shop) AS e FROM sales",
        "WITH a AS (SELECT * FROM text.`/etc/hostname`) SELECT shop, value FROM sales JOIN a ON shop = value",
        "SELECT TRANSFORM(shop) USING 'env' AS (x STRING) FROM sales",
        "SELECT from_xml(shop, 'a INT', map('rowValidationXSDPath', '/etc/hostname')) AS a FROM sales",
    ],
)
def test_of_what_a_text_may_not_reach_nothing_is_asked_in_other_words(reaching: str, laboratory: Any) -> None:
    """Damage: a part of a refused text is put before Spark by itself, where no check looks at what it reaches."""
    noting = Noting(laboratory.analyst)
    with pytest.raises(DefinitionError):
        plan_view(reaching, laboratory.catalog, noting)
    assert set(noting.texts) <= {reaching}
    assert noting.steps == []


def schema_of(**columns: str) -> Schema:
    """Return a schema by keyword."""
    return Schema(tuple(Column(name, type_) for name, type_ in columns.items()))
