"""Beginnings: what is read or computed for the first time, and how far that has come, while it takes long.

A source *snapshots* until its first step is durable, a view *hydrates* until its first result is.  Until then neither
can be read, and a person who waits wants to see that it goes on.  It is from memory alone, so any thread may ask, and
it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strandline.frontier import MINIMUM
from strandline.instance.commands import Output
from strandline.instance.running.views import Dataflows
from strandline.sources.ingest import Ingestion

SNAPSHOTTING = "snapshotting"
HYDRATING = "hydrating"


@dataclass(frozen=True, slots=True)
class Beginning:
    """An item that begins: ``verb`` is what it does, ``rows`` how many rows are read, ``about`` of how many (if known).

    ``since_ms``: when what is under way was begun; None: nothing is under way for it now.
    """

    name: str
    verb: str
    rows: int
    about: int | None
    since_ms: int | None


def of_source(
    source: str, ingestion: Ingestion, outputs: tuple[Output, ...], under_way: Mapping[str, int]
) -> Iterator[Beginning]:
    """Yield the outputs of a source of which nothing is durable yet."""
    progress, found = ingestion.snapshots(), ingestion.status.outputs
    names = {each.table: each.collection.name.lower() for each in outputs}
    for table, status in found.items():
        if status.upper == MINIMUM:
            name, seen = names.get(table, source), progress.get(table)
            rows, about = (status.read_records, None) if seen is None else (seen.rows, seen.about)
            yield Beginning(name, SNAPSHOTTING, rows, about, under_way.get(name, under_way.get(source)))


def of_views(dataflows: Dataflows, under_way: Mapping[str, int]) -> Iterator[Beginning]:
    """Yield the views whose first result is not durable yet; rows are updates that the inputs of their stages hold."""
    for view, sink in dataflows.sinks.items():
        if sink.writer.state.upper == MINIMUM:
            runs = dataflows.runs_of(view)
            about = sum(run.input_updates for run in runs)
            rows = sum(run.input_updates for run in runs if run.sink.writer.state.upper != MINIMUM)
            yield Beginning(view, HYDRATING, rows, about, under_way.get(view))
