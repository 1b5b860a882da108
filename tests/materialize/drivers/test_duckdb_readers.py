"""Programs that read a DuckDB file beside `strandline run`, as docs/endpoints/duckdb.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "endpoints" / "duckdb.md").read_text()
HOLDING = """
import sys, duckdb
with duckdb.connect(sys.argv[1]) as connection:
    connection.sql("INSERT INTO t VALUES (2)")
    print("held", flush=True)
    sys.stdin.readline()
"""
"""A process that has the file open until it reads a line."""


def reader() -> Callable[..., Any]:
    """Return the function that the page shows."""
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(compile(found[1], "docs/endpoints/duckdb.md", "exec"), names)  # our own text
    return names["answer"]  # type: ignore[no-any-return]


def test_a_reader_that_meets_a_commit_asks_again_as_the_page_says(tmp_path: Path) -> None:
    """Damage: a report fails now and then with a lock error, in the moment of a commit."""
    path, answer = tmp_path / "reports.duckdb", reader()
    with duckdb.connect(str(path)) as connection:
        connection.sql("CREATE TABLE t AS SELECT 1 AS n")
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(duckdb.IOException, match="lock"):
            answer(str(path), "SELECT n FROM t", seconds=0)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert answer(str(path), "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    with pytest.raises(duckdb.CatalogException):
        answer(str(path), "SELECT n FROM nothing")
