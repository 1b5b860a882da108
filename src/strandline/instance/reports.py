"""Reports: what an instance says of what it runs, as values.

Source: design page "compute" (instances: replica → controller).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.frontier.antichain import Frontier


@dataclass(frozen=True, slots=True)
class Report:
    """The frontier of each item, and its notices, by its name.

    ``frontiers``: of a collection its upper; of a materialization the time before which its endpoint has everything.
    """

    frontiers: Mapping[str, Frontier]
    notices: Mapping[str, list[str]]
