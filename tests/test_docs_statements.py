"""What docs/statements.md shows is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.client import Transaction
from strandline.controller.language import statements, unsupported
from strandline.errors import DefinitionError

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "statements.md").read_text()
EXAMPLES = "\n".join(re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.spark
def test_the_examples_of_the_page_run_as_they_stand(spark: SparkSession, tmp_path: Path) -> None:
    """Else a reader copies a statement that is refused, or does something else."""
    script = EXAMPLES.replace("/tmp/visits/", f"{tmp_path}/").replace(":memory:", f"{tmp_path}/dashboard.duckdb")
    answers = []
    with strandline.open("memory://", spark=spark) as env:
        transaction: Transaction | None = None
        for text in statements.split(script):
            match statements.parse(text):
                case statements.Query(text=query):
                    env.tick()
                    answers.append(sorted(tuple(row) for row in env.query(query).collect()))
                case statements.Bracket(word="BEGIN"):
                    transaction = env.begin()
                case statements.Bracket():
                    assert transaction is not None
                    transaction.commit()
                    transaction = None
                case statement:
                    (transaction or env).execute(statement)
        assert env.verify("sales").ok
        customers = [(1, "Leiden"), (3, "Bern")]
        assert answers == [[("Bern", 1), ("Leiden", 1)], [(1,)], [("Bern",)], [(1,), (2,)], customers]
        assert [(row["id"], int(row["amount"])) for row in env.query("SELECT * FROM orders").collect()] == [(7, 5)]


def test_the_page_shows_each_kind_of_statement() -> None:
    """Else there is a statement that only readers of the code know."""
    shown = {type(statements.parse(text)) for text in statements.split(EXAMPLES)}

    assert shown == set(statements.Statement.__args__)  # type: ignore[attr-defined]


def test_the_page_names_each_statement_that_is_refused_and_no_other() -> None:
    """Else a reader finds a word on the page that runs, or none for the word that does not."""
    table = PAGE[PAGE.index("| refused |") :]
    named = {word for line in table.splitlines() for word in re.findall(r"`([^`]+)`", line.split("|")[1])}
    for text in named:
        with pytest.raises(DefinitionError, match="is not supported"):
            statements.parse(f"{text} t")

    assert {text for text in named if " " not in text} == unsupported.STATEMENTS.keys() - {"START"}
