"""How a call ends when Spark's JVM is gone: the bridge to it is refused a connection."""

from __future__ import annotations

from types import FunctionType


def refused() -> bool:
    """Answer as a server that no longer listens."""
    raise ConnectionRefusedError(111, "Connection refused")


refused_by_the_jvm = FunctionType(refused.__code__, {**globals(), "__name__": "py4j.clientserver"})
"""The same, called by the bridge to the JVM."""
