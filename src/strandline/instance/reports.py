"""Reports: what an instance says of what it runs, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from strandline.algebra.schema import Column
from strandline.errors import WAITS
from strandline.frontier import Frontier
from strandline.materialize.status import Status as TaskStatus
from strandline.problem import Problem, Stopped
from strandline.sources.status import Status as SourceStatus

ENDED: Final = Problem(
    "session-ended",
    WAITS + "another session, which the next tick opens: the endpoint ended the last one ({why})",
    Stopped.ENDPOINT,
)


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """What a view's sink does here: the fingerprint of its plan, and how many updates it has appended."""

    fingerprint: str
    rows: int


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """What was done for a collection that a source feeds, since it was opened here, in records.

    ``behind``: how many of upstream's offsets its source has bound and not made durable.
    """

    read_records: int
    reread_records: int
    durable_records: int
    error_records: int
    behind: int


@dataclass(frozen=True, slots=True)
class Report:
    """How far each item is, by its name, and what was done for it since it was opened here.

    ``frontiers``: of a collection its upper; of a materialization the time before which its endpoint has everything.
    ``views``: those whose shard has a history.
    ``steps``: of each stage that the last tick stepped, how many input updates it read.
    ``added``: the columns that collections of sources are to get, because their upstreams have got them.
    """

    frontiers: Mapping[str, Frontier]
    notices: Mapping[str, list[str]]
    sources: Mapping[str, SourceStatus]
    views: Mapping[str, ViewStatus]
    tasks: Mapping[str, TaskStatus]
    steps: Mapping[str, int]
    added: Mapping[str, tuple[Column, ...]]
