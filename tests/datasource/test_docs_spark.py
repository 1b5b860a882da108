"""What docs/spark.md shows runs as it stands, and its table lists the options that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.datasource.opened import Options
from strandline.options import lines

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
EXAMPLES: Final = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_lists_every_option() -> None:
    """Damage: an option that no user finds, or one that is refused as the page shows it."""
    own = [line for line in lines(Options) if "Set by `register`" not in line]
    shown = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith("| `storage.…`")]
    assert shown == own


@pytest.mark.spark
def test_the_examples_run_one_after_the_other(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: the first thing that a user copies fails."""
    assert len(EXAMPLES) == 7
    location = str(tmp_path / "strand")
    names: dict[str, object] = {"given": spark.newSession()}
    with strandline.open(location, spark=spark) as env:
        env.execute("CREATE TABLE orders (city STRING, amount INT)")
        env.execute("CREATE MATERIALIZED VIEW by_city AS SELECT city, sum(amount) AS amount FROM orders GROUP BY city")
        for amount in (3, 4):
            env.insert("orders", [{"city": "Ghent", "amount": amount}])
            env.tick()
        for example in EXAMPLES:
            text = example.replace("/data/strand", location).replace("/data/checkpoints", str(tmp_path / "checkpoints"))
            text = text.replace("SparkSession.builder.getOrCreate()", "given")
            exec(compile(text, "docs/spark.md", "exec"), names)  # our own text
    shown = capsys.readouterr().out
    assert shown.count("Ghent") >= 7, shown
    assert "by_city is kept readable from" in shown
