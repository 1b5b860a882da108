"""How a test has Spark compile its plans, as it does in production; all others interpret them (`interpreted.py`).

Each room above the engine has one test that compiles: what differs between the two is found there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

COMPILED: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
"""Spark's own defaults."""


def as_in_production() -> dict[str, str]:
    """Return the environment of a process whose Spark runs as a user's does."""
    return {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
