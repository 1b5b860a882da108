"""A program that serves the DuckDB driver over its stdin and stdout, as `strandline driver serve duckdb` does."""

from __future__ import annotations

import os
import sys
from functools import partial

from strandline.materialize.wire.options import CODEC_VARIABLE, codec
from strandline.materialize.wire.serve import run
from strandline.store.clock import SystemClock
from strandline.wiring.loop import RunningTask
from strandline.wiring.registry import DRIVERS


def main(name: str) -> int:
    """Serve until stdin ends."""
    clock = SystemClock()
    return run(DRIVERS["duckdb"], codec(name), clock, partial(RunningTask, clock))


if __name__ == "__main__":
    sys.exit(main(os.environ.get(CODEC_VARIABLE, "proto")))
