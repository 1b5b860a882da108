"""`Engine`: the data plane whole, for what runs items of every kind, and for what implements it."""

from __future__ import annotations

from typing import Protocol

from strandline.plane.enveloping import Enveloping
from strandline.plane.evaluating import Evaluating
from strandline.plane.reading import Reading
from strandline.plane.staging import Staging


class Engine(Staging, Reading, Evaluating, Enveloping, Protocol):
    """Runs jobs over rows.  Calls are async; the work runs on Spark.  Cancelling a call does not undo it."""
