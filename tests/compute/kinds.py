"""By which rules the laboratory's queries are maintained: a planner that forgets a rule is right still, and slow.

``kinds.json`` has the kinds of the stages of each query.  After a change that is meant, write it anew:
``KINDS=write pytest tests/compute``; its difference shows what changed.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from strandline.algebra.nodes import Opaque
from strandline.compute.stage import Stage

_FILE: Final = Path(__file__).with_name("kinds.json")
_known: Final[dict[str, list[str]]] = json.loads(_FILE.read_text()) if _FILE.exists() else {}
_met: Final[dict[str, list[str]]] = {}


def check(sql: str, stages: Sequence[Stage]) -> None:
    """Assert that the view ``sql`` has the kinds of ``stages`` that it had; or note that it has these."""
    kinds = [_described(stage) for stage in stages]
    if os.environ.get("KINDS") == "write":
        if not _met:
            atexit.register(_write)
        _met[sql] = kinds
    else:
        assert _known.get(sql) == kinds, f"{sql} was maintained by {_known.get(sql)}, and now by {kinds}"


def _described(stage: Stage) -> str:
    """Return the kind of a stage, and of what is recomputed what is known of it."""
    match stage.plan:
        case Opaque(picks=picks, key=key, top=top, first=first):
            known = {"by key": key is not None, "picks": picks, "top": top, "first": first is not None}
            return " ".join([stage.kind, *(word for word, holds in known.items() if holds)])
    return stage.kind


def _write() -> None:
    _FILE.write_text(json.dumps(_known | _met, indent=0, sort_keys=True) + "\n")
