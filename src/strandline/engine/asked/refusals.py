"""What Spark refuses of a text, said to its author: one sentence, where in the text, and names that are similar."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

from pyspark.errors import ParseException, PySparkException, QueryContextType

from strandline.engine.session import reach
from strandline.errors import DefinitionError, Position

_PARSE_POSITION: Final = re.compile(r"\(line (\d+), pos(?:ition)? (\d+)\)")
_STATE_AND_TRACE: Final = re.compile(r"\s*SQLSTATE:.*", re.DOTALL)
_CANDIDATES_MAX: Final = 3
_PROPOSED_MAX: Final = 5
"""How many columns Spark proposes at most, of all that there are."""
_LIKENESS_MIN: Final = 0.6


def refusal(error: PySparkException, sql: str, names: Sequence[str], *, before: int = 0) -> DefinitionError:
    """Return what Spark said in one sentence, with the position in the caller's ``sql``.

    ``names`` are the relations that there are; ``before``: how many characters of the text that Spark read come before
    ``sql``.
    """
    if isinstance(error, ParseException):
        found = _PARSE_POSITION.search(str(error))
        place = Position(int(found[1]), int(found[2]) + 1) if found else None  # Spark counts columns from 0
        return DefinitionError(sentence(str(error)), place)
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    position = _position(error, sql, before)
    if condition.startswith("UNRESOLVED_COLUMN"):
        missing = _bare(parameters.get("objectName"))
        proposed = _bare(parameters.get("proposal")).split(", ")
        some = len(proposed) >= _PROPOSED_MAX
        return DefinitionError(f"unknown column {missing}{_candidates(missing, proposed, some=some)}", position)
    if condition == "UNRESOLVED_ROUTINE" and (barred := reach.barred(parameters.get("routineName", ""))):
        return DefinitionError(barred, position)
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        missing = _bare(parameters.get("relationName"))
        return DefinitionError(f"unknown relation {missing}{_candidates(missing, names)}", position)
    return DefinitionError(sentence(str(error)), position)


def _position(error: PySparkException, sql: str, before: int) -> Position | None:
    for context in error.getQueryContext():
        if context.contextType() is QueryContextType.SQL and context.objectType() == "":
            return place_in(sql, context.startIndex() - before)
    return None


def place_in(sql: str, index: int) -> Position | None:
    """Return where the character ``index`` of ``sql`` is; None if it is outside."""
    if not 0 <= index <= len(sql):
        return None
    before = sql[:index]
    return Position(before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1)


def _candidates(missing: str, names: Sequence[str], *, some: bool = False) -> str:
    """Return which of ``names`` may be meant by ``missing``; if none, all of them (``some``: there may be others)."""
    names = [name for name in names if name]
    near = difflib.get_close_matches(missing, names, n=_CANDIDATES_MAX, cutoff=_LIKENESS_MIN)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there is {', '.join(sorted(names))}{', among others' if some else ''}" if names else ""


def _bare(name: str | None) -> str:
    return (name or "").replace("`", "")


def sentence(text: str) -> str:
    """Return Spark's sentence without its error class, its state code and the trace and plan that follow.

    >>> sentence("[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 1, pos 9)")
    "Syntax error at or near 'FORM'."
    """
    return _STATE_AND_TRACE.sub("", re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", text.strip())).splitlines()[0]
