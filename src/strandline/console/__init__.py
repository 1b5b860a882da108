"""Console: one read-only page about a running environment, its metrics for Prometheus, and its traces.

`observed` is what `strandline run` opens beside `strandline.serving`.  Everything here reads what the process knows
from memory; nothing changes the environment.
"""

from strandline.console.service import Observer, observed

__all__ = ["Observer", "observed"]
