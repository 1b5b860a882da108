"""What the README shows is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.controller.language import statements

DOCS = Path(__file__).resolve().parent.parent / "docs"
README = (DOCS.parent / "README.md").read_text()


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


def test_the_figures_of_the_readme_are_those_of_the_pages_that_measure_them() -> None:
    """Damage: the first page boasts of what no measurement shows."""
    performance, reliability = ((DOCS / name).read_text() for name in ("performance.md", "reliability.md"))
    assert "13.8: 27.8 s ÷ 2.0 s" in performance
    assert "| 30 000 broke no law (2026-11-21)" in reliability
    assert "25 SIGKILLs of the main job" in reliability
    for figure in ("27.8 s", "2.0 s", "30 000 simulated histories", "25 SIGKILLs of the main job", "0 differences"):
        assert figure in " ".join(README.split())


def test_the_picture_is_there_and_needs_nothing_from_elsewhere() -> None:
    """Damage: the first page shows a broken image, or reports its reader to a server of others."""
    (place,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    picture = (DOCS.parent / place).read_text()
    assert "prefers-color-scheme: dark" in picture
    assert [each for each in re.findall(r"https?://[^\"' ]+", picture) if "www.w3.org" not in each] == []
