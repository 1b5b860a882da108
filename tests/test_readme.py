"""What the README shows is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.controller.language import statements

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


@pytest.mark.spark
def test_the_example_of_the_readme_runs_as_it_stands(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the first thing that a new user tries fails."""
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    assert 'strandline.open("memory://")' in found[1]
    example = found[1].replace('open("memory://")', 'open("memory://", spark=spark)')  # the tests' own application

    exec(compile(example, "README.md", "exec"), {"spark": spark, "strandline": strandline})  # our own text

    shown = capsys.readouterr().out
    assert shown.index("Leiden") < shown.index("Delft")


def test_the_statements_of_the_readme_can_be_read() -> None:
    """Else a reader would copy SQL that is refused."""
    found = re.search(r"```sql\n(.*?)```", README, re.DOTALL)
    assert found is not None
    kinds = [type(statements.parse(text)).__name__ for text in statements.split(found[1])]

    assert kinds == ["CreateSource", "CreateMaterialization"]
