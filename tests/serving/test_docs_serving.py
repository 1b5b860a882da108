"""What docs/serving.md shows runs as it stands there, but for the path of the location."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from tests.serving.conftest import ticking

import strandline

pytestmark = pytest.mark.spark

PAGE: Final = Path(__file__).parents[2] / "docs" / "serving.md"
SOCKET: Final = "grpc+unix:///data/strand/serving/flight.sock"
EXAMPLES: Final = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def printed(example: str, directory: Path) -> str:
    """Run an example in a process of its own, as its reader does; return what it prints."""
    ran = subprocess.run(
        [sys.executable, "-c", example], cwd=directory, capture_output=True, text=True, timeout=150, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_examples_of_the_page_run(spark: Any, tmp_path: Path) -> None:
    """Damage: the first thing that a reader tries fails."""
    ours, others = EXAMPLES
    with strandline.open(f"file://{tmp_path}/data", spark=spark) as env, ticking(env) as serving:
        assert printed(ours, tmp_path) == "n\n2\n"
        assert SOCKET in others
        shown = "\nprint(orders['text'].tolist(), totals['n'].to_list())"
        assert printed(others.replace(SOCKET, serving.flight_sql[0]) + shown, tmp_path) == "['a', 'b'] [2]\n"
        rows, _ = env.answer("SELECT * FROM notes ORDER BY id")
        assert rows.to_pydict() == {"id": [1, 2, 3], "text": ["a", "b", "c"]}
