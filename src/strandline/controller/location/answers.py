"""What Spark has answered about the texts of views, durable: so that a restart plans without Spark.

It is a value of the location, beside the catalog.  Nothing follows from it that Spark would not say again
(`compute/plan/scalars/remembered.py`), so a store that does not give it or take it stops nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from strandline.compute.plan.scalars.remembered import Answers
from strandline.errors import CorruptionError, StoreError, Unavailable
from strandline.persist.handles.register import Register

ANSWERS: Final = "answers"


async def recall(register: Register, answers: Answers) -> None:
    """Know what was answered before, if it is kept for this authority."""
    if answers.recalls:
        with suppress(StoreError, Unavailable, CorruptionError):
            if (kept := await register.read()) is not None:
                answers.recall(kept)


async def keep(register: Register, answers: Answers) -> None:
    """Have later processes know what was answered here; nothing is written if nothing was learned."""
    if answers.learned and (encoded := answers.encode()) is not None:
        with suppress(StoreError, Unavailable):
            await register.update(lambda _: encoded)
