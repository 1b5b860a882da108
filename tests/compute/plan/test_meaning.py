"""The definite meaning of a view as a text: plain Spark answers it with what the view holds, ties and floats too."""

from __future__ import annotations

import pytest
from sqlglot import exp

from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.meaning import meaning
from strandline.compute.plan.sql import parse
from strandline.compute.plan.view import plan_view
from strandline.errors import DefinitionError

pytestmark = pytest.mark.spark

REST = "BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"
TOP_OF_EACH = (
    "SELECT h.shop, x.product FROM shops h,"
    " LATERAL (SELECT s.product FROM sales s WHERE s.shop = h.shop ORDER BY s.qty DESC LIMIT 1) x"
)
BEFORE = "(SELECT shop, lag(units) OVER (PARTITION BY shop ORDER BY day) AS b FROM sales)"
OPEN = [
    f"SELECT x.b, h.city FROM {BEFORE} x NATURAL JOIN shops h",
    "SELECT shop, product, units FROM sales ORDER BY shop LIMIT 5",
    "SELECT * FROM sales ORDER BY day LIMIT 3 OFFSET 1",
    "SELECT shop, n FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop ORDER BY n LIMIT 2) WHERE n > 0",
    TOP_OF_EACH,
    "SELECT shop, (SELECT product FROM sales ORDER BY qty LIMIT 1) AS first FROM shops",
    "SELECT shop, product, row_number() OVER (PARTITION BY shop ORDER BY qty DESC) AS place FROM sales",
    "SELECT shop, qty, last_value(product) OVER (PARTITION BY shop ORDER BY qty) AS last FROM sales",
    "SELECT shop, qty, nth_value(product, 2) OVER (PARTITION BY shop ORDER BY qty) AS second FROM sales",
    "SELECT shop, sum(qty) OVER (PARTITION BY shop ORDER BY qty ROWS 1 PRECEDING) AS near FROM sales WHERE units < 10",
    "SELECT lag(product) OVER (PARTITION BY city ORDER BY day) AS b FROM sales s JOIN shops h ON s.shop = h.shop",
    "SELECT shop, sum(weight) AS w, avg(weight) AS a FROM sales GROUP BY shop",
    "WITH h AS (SELECT sum(weight) AS w FROM sales GROUP BY shop) SELECT row_number() OVER (ORDER BY w) AS p FROM h",
    "SELECT shop, count(*) AS n, row_number() OVER (ORDER BY count(*)) AS place FROM sales GROUP BY shop",
    "SELECT shop, listagg(product, '-') WITHIN GROUP (ORDER BY qty DESC) AS l FROM sales GROUP BY shop",
    "SELECT string_agg(shop) WITHIN GROUP (ORDER BY size) FILTER (WHERE size > 0) AS l FROM shops",
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("sql", OPEN)
@pytest.mark.parametrize("seed", [3, 8])
def test_plain_spark_answers_the_meaning_with_what_the_view_holds(laboratory, sql: str, seed: int) -> None:
    """Damage: `verify` calls a right view wrong, because plain Spark broke a tie otherwise."""
    text = meaning(sql, laboratory.catalog, laboratory.analyst)
    assert text is not None
    assert text != sql
    history = laboratory.history(seed)
    kept = laboratory.maintain(sql, history, [2, 4, 6])
    answers = laboratory.answers(text, history)
    for time, held in kept.items():
        assert laboratory.rounded(held) == laboratory.rounded(answers[time]), f"at {time}"


OF_FLOATS = [
    "SELECT shop, CAST(var_pop(weight) AS STRING) AS v, CAST(stddev(weight) AS STRING) AS s FROM sales GROUP BY shop",
    "SELECT CAST(sum(weight) AS STRING) AS w, CAST(avg(weight) AS STRING) AS a, max(qty) AS q FROM sales",
    "SELECT sum(weight) AS w, avg(weight) AS a, sum(DISTINCT weight) AS d FROM sales GROUP BY shop",
    "SELECT sum(weight + 0.1) AS w, sum(weight) AS v, min(units) AS u FROM sales GROUP BY product",
    "SELECT CAST(avg(units) AS STRING) AS a, CAST(try_sum(weight) AS STRING) AS t FROM sales GROUP BY shop",
    "SELECT shop, sum(CAST(weight AS STRING)) AS w, variance(qty) AS v, try_avg(weight) AS a FROM sales GROUP BY shop",
    "SELECT shop FROM sales GROUP BY shop HAVING sum(weight) > 0.3 OR stddev_samp(weight) >= avg(weight)",
    "SELECT sum(weight) FILTER (WHERE qty > 1) AS w, std(weight) FILTER (WHERE qty > 1) AS s FROM sales GROUP BY shop",
    "SELECT qty, sum(weight) OVER (PARTITION BY shop) AS w, var_samp(weight) OVER (PARTITION BY shop) AS v FROM sales",
    "SELECT CAST(w AS STRING) AS t, count(*) AS n FROM (SELECT avg(weight) AS w FROM sales GROUP BY qty) GROUP BY w",
]


@pytest.mark.drawn(5)
@pytest.mark.parametrize("sql", OF_FLOATS)
@pytest.mark.parametrize(
    "seed", [3, pytest.param(11, marks=pytest.mark.slow), pytest.param(12, marks=pytest.mark.slow)]
)
def test_what_floats_come_to_is_one_value_whatever_computes_it(laboratory, sql: str, seed: int) -> None:
    """Damage: a last digit shows in a text, and `verify` calls a right view wrong; or two steps disagree for ever."""
    text = meaning(sql, laboratory.catalog, laboratory.analyst)
    assert text is not None
    history = laboratory.history(seed)
    kept, answers = laboratory.maintain(sql, history, [2, 4, 6]), laboratory.answers(text, history)
    for time, held in kept.items():
        assert laboratory.bits(held) == laboratory.bits(answers[time]), f"verify, at {time}"
        assert laboratory.bits(held) == laboratory.bits(laboratory.recomputed(sql, history, time)), f"anew, at {time}"


SETTLED = [
    "SELECT shop, listagg(product, ',') WITHIN GROUP (ORDER BY product) AS l FROM sales GROUP BY shop",
    "SELECT city, listagg(DISTINCT shop) WITHIN GROUP (ORDER BY shop DESC) AS l FROM shops GROUP BY ROLLUP (city)",
    "SELECT first_value(shop) OVER (PARTITION BY shop) AS f, any_value(qty + 1) OVER (PARTITION BY qty) FROM sales",
    "SELECT shop, last_value(qty) IGNORE NULLS OVER (PARTITION BY shop ORDER BY qty) AS l FROM sales",
    "SELECT last_value(qty) OVER (ORDER BY qty RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS l FROM sales",
    "SELECT shop, first_value(qty) OVER (ORDER BY qty RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS f FROM sales",
    "SELECT sum(qty) OVER (PARTITION BY shop ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS s FROM sales",
]


@pytest.mark.parametrize("sql", SETTLED)
def test_what_no_order_of_rows_can_change_is_accepted_as_it_is(laboratory, sql: str) -> None:
    """Damage: a query with one answer is refused, or `verify` compares it with another text."""
    found = meaning(sql, laboratory.catalog, laboratory.analyst)
    assert found is not None
    assert found.lower() == sql.lower()
    history = laboratory.history(6)
    kept, answers = laboratory.maintain(sql, history, [2, 4, 6]), laboratory.answers(sql, history)
    for time, held in kept.items():
        assert laboratory.rounded(held) == laboratory.rounded(answers[time]), f"at {time}"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT shop, sum(qty) AS q, avg(price) AS p FROM sales GROUP BY shop",
        "SELECT shop, rank() OVER (ORDER BY qty) AS r FROM sales",
        "SELECT x |> y",
    ],
)
def test_a_query_that_leaves_spark_no_choice_means_what_its_author_wrote(laboratory, sql: str) -> None:
    """Damage: a view is compared with our reading of its text, where the text itself would do."""
    found = meaning(sql, laboratory.catalog, laboratory.analyst)
    assert found is not None
    assert " ".join(found.split()).lower() == " ".join(sql.split()).lower()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT shop, first_value(qty) IGNORE NULLS OVER (ORDER BY day) AS f FROM sales",
        f"SELECT last_value(qty) IGNORE NULLS OVER (ORDER BY day RANGE {REST}) AS l FROM sales",
        "SELECT first_value(qty) OVER (PARTITION BY shop) AS f FROM sales",
        "SELECT last_value(qty) OVER (PARTITION BY qty ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) AS f FROM sales",
        "SELECT shop, qty FROM (SELECT shop, qty FROM sales ORDER BY qty DESC) LIMIT 3",
        "(SELECT shop, qty FROM sales ORDER BY qty DESC) LIMIT 3",
    ],
)
def test_what_has_no_order_that_we_can_complete_is_refused_and_not_guessed(laboratory, sql: str) -> None:
    """Damage: a view holds other rows than Spark gives, and `verify` agrees with it."""
    assert meaning(sql, laboratory.catalog, laboratory.analyst) is None
    with pytest.raises(DefinitionError, match="no definite value"):
        laboratory.plan(sql)


class Doubles:
    """An analyst to whom every query is one column of doubles."""

    def schema_of(self, sql: str, relations: object, *, ours: bool = False) -> Schema:
        """See `Analyst.schema_of`."""
        return Schema((Column("a", "double"),))


def test_a_choice_inside_of_what_is_written_anew_is_taken_there_too() -> None:
    """Damage: `verify` calls a right view wrong, because a tie was left in an expression that we have copied."""
    sql = "SELECT sum(size + (SELECT weight FROM sales ORDER BY weight LIMIT 1)) AS a FROM shops GROUP BY city"
    text = meaning(sql, {}, Doubles())  # type: ignore[arg-type]
    assert text is not None
    tree = parse(text)
    assert tree is not None
    limited = [each for each in tree.find_all(exp.Select) if each.args.get("limit") is not None]
    assert limited
    assert {each.args["order"].expressions[-1].this.sql() for each in limited} == {"1"}


def test_a_distrusted_view_without_a_text_of_its_own_is_planned_and_not_refused(laboratory) -> None:
    """Damage: a view that a check found wrong stands still for ever."""
    sql = "SELECT shop, row_number() OVER (ORDER BY sum(qty)) AS r FROM sales GROUP BY 1"
    assert meaning(sql, laboratory.catalog, laboratory.analyst) is None
    planned = plan_view(sql, laboratory.catalog, laboratory.analyst, distrusted=True)
    assert planned.schema.names == ("shop", "r")


def test_a_meaning_that_cannot_be_written_is_not_guessed(laboratory) -> None:
    """Damage: `verify` compares with a text that means something else."""
    sql = "SELECT first_value(units) OVER (ORDER BY qty RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS f FROM sales"
    assert meaning(sql, laboratory.catalog, laboratory.analyst) is None


def test_a_distrusted_view_is_recomputed_by_the_text_that_breaks_its_ties(laboratory) -> None:
    """Damage: a view that a check found wrong keeps other rows of a tie at each step, and is found wrong for ever."""
    sql = "SELECT shop, product, units FROM sales ORDER BY shop LIMIT 5"
    whole = meaning(sql, laboratory.catalog, laboratory.analyst)
    planned = plan_view(sql, laboratory.catalog, laboratory.analyst, distrusted=True)
    assert planned.plan.sql == whole != sql
