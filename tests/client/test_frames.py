"""A frame from `query` in the caller's own session, as docs/operations.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import strandline

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()


def test_the_rows_of_a_query_are_used_in_the_callers_session_as_the_page_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: a program joins an answer with its own tables, and Spark says that there is no such view."""
    found = re.search(r"```python\n(frame = env\.query.*?)```", PAGE, re.DOTALL)
    assert found is not None
    with strandline.open(str(tmp_path / "data"), spark=spark) as env:
        env.execute("CREATE TABLE sales (city STRING, amount INT)")
        env.insert("sales", [{"city": "Ghent", "amount": 3}, {"city": "Delft", "amount": 4}])
        env.query("SELECT * FROM sales").createOrReplaceTempView("unseen")
        with pytest.raises(AnalysisException):
            spark.table("unseen")
        names: dict[str, object] = {"env": env, "spark": spark}
        exec(compile(found[1], "docs/operations.md", "exec"), names)  # our own text
    shown = capsys.readouterr().out
    assert shown.count("Ghent") == 2, shown
    spark.sql("DROP VIEW global_temp.sold")
