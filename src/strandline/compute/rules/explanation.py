"""`Explanation`: by which rules a view is maintained, and why any part of it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether every part is maintained from changes, the reasons why not, and the SQL of a step, stage by stage.

    ``stages``: all that is known of each stage, as ``strandline explain --json`` prints it.
    """

    incremental: bool
    reasons: list[str]
    sql: list[str]
    text: str
    stages: list[dict[str, Any]]

    def __str__(self) -> str:
        return self.text
