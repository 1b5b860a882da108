"""With how much care a stage is computed, and what it falls back to when an expression fails.

*Plain*: as it is.  *By rows*: the stage's plan made careful (`algebra.careful`), so that rows that fail become rows of
the error half.  *As a whole*: no single row can be blamed (a recomputed query fails, or an aggregate), so the ok half
is empty and the error half holds one error, which names the collection and the query.

What care a stage is in at a time is a function of its own errors in its shard at that time, so a restart finds it
again.  Plain and careful plans agree: where a plain plan evaluates, a careful one finds the same rows and no error.  So
a step may take more care than the one before it, and go by its inputs' changes all the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from sqlglot import exp

from strandline.algebra.careful import careful
from strandline.algebra.nodes import Constant, Node, UnionAll
from strandline.algebra.scalar import Scalar
from strandline.algebra.schema import ERROR
from strandline.compute.rules.linear import updates
from strandline.compute.rules.phase import Window
from strandline.compute.stage import Stage
from strandline.plane.reading import Errors

_QUERY: Final = "query"


class Care(Enum):
    """How a stage is computed."""

    PLAIN = "plain"
    ROWS = "rows"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy by which a stage is brought on.

    By its inputs' changes in the whole window; or ``narrow``: in its first time of change alone, everything read added
    up before anything is evaluated; or ``anew``: from its inputs' contents at that time.
    """

    care: Care
    narrow: bool = False
    anew: bool = False

    @property
    def wide(self) -> bool:
        """Whether it takes the whole window."""
        return not (self.narrow or self.anew)


_ANEW: Final = tuple(Strategy(care, anew=True) for care in Care)
_ON: Final = {
    Care.PLAIN: (Strategy(Care.PLAIN), Strategy(Care.PLAIN, narrow=True), Strategy(Care.ROWS, narrow=True), *_ANEW[2:]),
    Care.ROWS: (Strategy(Care.ROWS, narrow=True), *_ANEW[2:]),
    Care.WHOLE: _ANEW,
}
_REBUILT: Final = {Care.PLAIN: _ANEW, Care.ROWS: _ANEW[1:], Care.WHOLE: _ANEW}


def strategies(care: Care, *, rebuild: bool = False, anew: bool = False) -> tuple[Strategy, ...]:
    """Return the strategies to bring on a stage in ``care``, each for when those before it fail; the last cannot.

    ``rebuild``: it is computed anew in any case.  ``anew``: to compute it anew is
    cheaper, so this comes first (in plain care).

    >>> [each.care.name for each in strategies(Care.PLAIN)]
    ['PLAIN', 'PLAIN', 'ROWS', 'WHOLE']
    >>> [each.anew for each in strategies(Care.ROWS)]
    [False, True]
    """
    return (_ANEW[:1] if anew else ()) + (_REBUILT if rebuild else _ON)[care]


def care_of(own: Errors) -> Care:
    """Return the care that a stage with these errors of its own is in."""
    if not own.count:
        return Care.PLAIN
    return Care.WHOLE if _QUERY in json.loads(own.sample[0]) else Care.ROWS


@dataclass(frozen=True, slots=True)
class Careful:
    """A stage by rows: ``stage`` computes its ok half, ``errors`` are the plans of its own errors."""

    stage: Stage
    errors: tuple[Node, ...]

    def error_updates(self, window: Window) -> Node | None:
        """Return the plan of the updates of the errors in ``window``; None if there are none."""
        found = tuple(change for error in self.errors if (change := updates(error, window)) is not None)
        return UnionAll(found) if len(found) > 1 else found[0] if found else None


def by_rows(stage: Stage) -> Careful:
    """Return ``stage`` made careful."""
    ok, errors = careful(stage.plan, stage.blamed)
    return Careful(replace(stage, plan=ok), errors)


def whole_error(stage: Stage) -> Node:
    """Return the one error of a stage that fails as a whole."""
    described = "the query as a whole" if stage.rule is None else stage.rule.described(stage.plan)
    error = json.dumps({"collection": stage.blamed, _QUERY: described}, separators=(",", ":"))
    return Constant((ERROR,), ((Scalar(exp.Literal.string(error)),),))
