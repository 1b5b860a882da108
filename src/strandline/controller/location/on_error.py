"""The options of every source and of every materialization, whatever its connector or endpoint.

``on_error``: what becomes of the good rows while a collection has errors.  Of a source: ``fail`` (the default) makes
every read of it, and of what is computed from it, a `CollectionError` until the errors have left; with ``continue`` its
good rows stay readable, and views over it are computed from these alone.  ``errors_max`` bounds how many errors a
source may hold: beyond that it stands still, because an input that changed its shape would leave one for each record.
Of a materialization: ``wait`` (the default) stands still at the last time without errors; ``continue`` pushes the good
rows.  Errors are counted by `status` and stay readable either way.

``evolve``: what a source does when its upstream gets a column (`sources.reader.ColumnsAdded`).

``delta``, ``diffs``, ``times`` and ``reduce``: what a materialization pushes if not the rows as they are
(`task.Binding`).  ``every`` and ``within``: when it begins its transactions (`materialize/schedule.py`).  ``trigger``:
what is called after them (`instance/running/deliveries.py`).  ``on_drop``: what becomes of the rows of a view that is
dropped from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias, TypeVar

from strandline.controller.location.config import INTERVAL_MS
from strandline.materialize.schedule import window
from strandline.options import ANY_TEXT, COUNT, FLAG, PLACE, Kind, one_of, option, options_of, understood

OPTION: Final = "on_error"
ERRORS_MAX: Final = "errors_max"
EVOLVE: Final = "evolve"
ALTERABLE_OF_SOURCES: Final = (ERRORS_MAX, EVOLVE)
"""What may change of a source while it is there, whatever its connector."""
ALTERABLE: Final = ("every", "on_drop", OPTION, "splits", "trigger", "within")
"""What may change of a materialization."""


def _window(text: str) -> str:
    """Return the text of a window.  Raises `ValueError` if it is none."""
    window(text)
    return text


class OfSource(Enum):
    """What reads of a source with errors return."""

    FAIL = "fail"
    CONTINUE = "continue"


class OfMaterialization(Enum):
    """What a materialization of a collection with errors does."""

    WAIT = "wait"
    CONTINUE = "continue"


class OfDropped(Enum):
    """What becomes of the rows of a view that is dropped from a materialization."""

    KEEP = "keep"
    REMOVE = "remove"


class Evolving(Enum):
    """What a source does when its upstream gets a column."""

    ADD = "add"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of every source."""

    on_error: OfSource = option(
        one_of(OfSource),
        "While records cannot be decoded: `fail` refuses reads, `continue` keeps the good rows readable.",
        default="fail",
    )
    errors_max: int | None = option(
        COUNT,
        "How many errors it may hold: with more it stands still, and reads nothing more until they are dismissed or "
        "this is raised. Without it, any number.",
        default=None,
    )
    evolve: Evolving | None = option(
        one_of(Evolving),
        "When upstream gets a column: `add` adds it here too. Without it, the source says so and goes on without the "
        "column (docs/sources.md, When upstream gets a column).",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializationOptions:
    """The options of every materialization."""

    on_error: OfMaterialization = option(
        one_of(OfMaterialization),
        "While a collection has errors: `wait` stands still at the last time without, `continue` pushes the good rows.",
        default="wait",
    )
    on_drop: OfDropped = option(
        one_of(OfDropped),
        "When a view is dropped from it and `DROP VIEW` does not say: `keep` leaves its rows at the endpoint, `remove` "
        "takes them out (docs/endpoints.md, Other views).",
        default="keep",
    )
    delta: bool = option(
        FLAG,
        "Push what changes, instead of keeping a table equal: the last row of each key that changed, or that it is "
        "gone; without a key, each row that came.",
        default="false",
    )
    diffs: bool = option(
        FLAG,
        "With `delta`: push the net changes themselves, with `__diff`: how many more of the row there are, or fewer.",
        default="false",
    )
    reduce: str = option(
        ANY_TEXT,
        "Reduce the rows of each key of append-only collections to one, by the annotations of this JSON Schema: the "
        "columns are its properties (docs/reductions.md). With `delta`: those of each transaction.",
        default="",
    )
    times: bool = option(
        FLAG, "With `delta`: push what changed at each time apart, with that time as `__time`.", default="false"
    )
    splits: int = option(
        COUNT,
        "How many sessions write to the endpoint side by side, each the rows of a range of keys (docs/endpoints.md, "
        "Splits).",
        default="1",
    )
    every: int = option(
        INTERVAL_MS,
        "Begin a transaction so often at most, as `10 minutes` (docs/endpoints.md, Schedules).",
        default="0",
    )
    within: str | None = option(
        Kind(_window, {"minLength": 1}),
        "Begin transactions in these hours alone, as `08:00-18:00 mon-fri Europe/Berlin`; without days, on all.",
        default=None,
    )
    trigger: str | None = option(
        PLACE,
        "A URL that is called after transactions, with the time that the endpoint has come to (docs/endpoints.md, "
        "Triggers); by reference if it holds a secret.",
        default=None,
    )


Common: TypeAlias = SourceOptions | MaterializationOptions
C = TypeVar("C", bound=SourceOptions | MaterializationOptions)


def continues(options: Mapping[str, str]) -> bool:
    """Tell whether good rows go on in spite of errors."""
    return options.get(OPTION) == OfSource.CONTINUE.value


def others(name: str, options: Mapping[str, str], common: type[Common]) -> dict[str, str]:
    """Return all other options than those of ``common``: those of the connector or the endpoint.

    Raises `DefinitionError` if one of ``common``, of the item ``name``, has no such value.

    >>> others("s", {"path": "/d", "on_error": "continue"}, SourceOptions)
    {'path': '/d'}
    """
    common_to_all(name, options, common)
    own = names(common)
    return {key: value for key, value in options.items() if key not in own}


def common_to_all(name: str, options: Mapping[str, str], common: type[C]) -> C:
    """Return the values of the options of ``common``.  Raises as `others`."""
    own = names(common)
    return understood(repr(name), common, {key: value for key, value in options.items() if key in own})


def names(common: type[object]) -> frozenset[str]:
    """Return the names of the options of ``common``."""
    return frozenset(each.name for each in options_of(common))


def errors_max(options: Mapping[str, str]) -> int | None:
    """Return how many errors a source with such options may hold; None: any number.

    >>> errors_max({"path": "/d", "errors_max": "10"}), errors_max({})
    (10, None)
    """
    text = options.get(ERRORS_MAX)
    return None if text is None else COUNT.understand(text)


def evolves(options: Mapping[str, str]) -> bool:
    """Return whether a source with such options gets the columns that its upstream gets.

    >>> evolves({"path": "/d", "evolve": "add"}), evolves({})
    (True, False)
    """
    return options.get(EVOLVE) == Evolving.ADD.value
