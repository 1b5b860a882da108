"""The limits of persist that no history of a few hundred steps would reach: how small they are is part of the seed.

A limit that is never reached hides what happens there: a scan that ends in the middle, a writer that is no longer
remembered, a token that came too late.  Each may be drawn so small that a short history reaches it.

Trap: these are constants of persist's modules, replaced while a run lasts, in every module that imported them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Final
from unittest import mock

from strandline.persist.handles import read, register, write
from strandline.persist.shard import machine, state, trace
from strandline.persist.together import transactions, unsealed
from strandline.persist.upkeep import collect, compact


@dataclass(frozen=True, slots=True)
class Limit:
    """The constant ``name`` of ``modules``, and what it may be in a run: what it is in earnest comes first."""

    name: str
    modules: tuple[ModuleType, ...]
    options: tuple[float, ...]


LIMITS: Final = (
    Limit("SCAN_LIMIT", (machine, collect), (256, 256, 256, 5, 1)),
    Limit("WRITERS_MAX", (state, unsealed), (64, 64, 5, 1)),
    Limit("KEEP_VERSIONS", (register,), (64, 2, 1)),
    Limit("TIDY_EVERY", (transactions,), (64, 6, 1)),
    Limit("TOKEN_LIFE_MS", (transactions,), (900_000, 900_000, 2)),
    Limit("APPLY_RETRIES_MAX", (transactions,), (64, 1)),
    Limit("ROLLUPS_ENOUGH", (collect,), (3, 2)),
    Limit("LEFT_OUT_MAX", (machine,), (512, 1)),
    Limit("MERGES_MAX", (compact,), (32, 1)),
    Limit("LARGE_UPDATES", (trace,), (100_000, 3, 0)),
    Limit("INLINE_SHARD_BYTES_MAX", (write, trace), (262_144, 2_000, 0)),
    Limit("REPLANS_MAX", (read,), (8, 1)),
    Limit("POLL_S_MAX", (read,), (16.0, 1.2)),
)
STREAM_LIMITS: Final = (
    *(limit for limit in LIMITS if limit.name in {"SCAN_LIMIT", "WRITERS_MAX", "TIDY_EVERY", "INLINE_SHARD_BYTES_MAX"}),
    Limit("RUN_CALLS_MAX", (unsealed,), (256, 2, 1)),
)


@contextmanager
def turned(limits: Mapping[Limit, float]) -> Iterator[None]:
    """Let each limit be what ``limits`` says while the context is entered."""
    with ExitStack() as stack:
        for limit, value in limits.items():
            for module in limit.modules:
                assert getattr(module, limit.name) == limit.options[0], f"{limit.name} is not what it was"
                stack.enter_context(mock.patch.object(module, limit.name, value))
        yield
