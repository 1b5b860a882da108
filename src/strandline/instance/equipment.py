"""Equipment: what an instance works with."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.compute.tick import SideBySide
from strandline.instance.connections import Connectors, Drivers, Triggers, no_triggers
from strandline.persist.client import PersistClient
from strandline.plane.engine import Engine
from strandline.sources.question import Patience


@dataclass(frozen=True)
class Equipment:
    """What an instance works with."""

    client: PersistClient
    engine: Engine
    connectors: Connectors
    drivers: Drivers
    together: SideBySide
    patience: Patience
    """How what goes on beside is begun, and how long an upstream is waited for."""
    lanes: int
    """How many stages may take long steps at a time."""
    triggers: Triggers = no_triggers
