"""An environment in memory over the list engine: what the tests of the controller, and the benchmark, are made of."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from strandline.controller.assembly import Assembly
from strandline.controller.location.tenure import SystemProcesses
from strandline.store.beside import Inline
from strandline.store.blob import Blob
from strandline.store.clock import Clock, Ids
from strandline.store.consensus import Consensus
from strandline.testing.doubles import in_turn
from strandline.testing.lists.list_analyst import ListAnalyst
from strandline.testing.lists.list_engine import ListEngine


def list_assembly(
    clock: Clock,
    ids: Ids,
    blob: Blob,
    consensus: Consensus,
    *,
    engine: ListEngine | None = None,
    connectors: Any = None,
    drivers: Any = None,
    opened: ExitStack | None = None,
) -> Assembly:
    """Return the assembly of an environment over ``blob`` and ``consensus``, with actors that run in turn.

    ``engine``: None makes one over ``blob``.  ``connectors``, ``drivers``: None where there is no source, no endpoint.
    """
    return Assembly(
        clock=clock,
        ids=ids,
        blob=blob,
        consensus=consensus,
        engine=ListEngine(blob) if engine is None else engine,
        analyst=ListAnalyst(),
        connectors=connectors,
        drivers=drivers,
        together=in_turn,
        beside=Inline,
        lanes=1,
        processes=SystemProcesses(),
        address=None,
        opened=ExitStack() if opened is None else opened,
    )
