"""Whose answers an analyst remembers: everything that they follow from, as one text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from strandline.engine.session.functions import Functions

ASKING: Final = ("algebra", "engine/frames", "engine/session", "engine/sql")
"""The rooms whose code asks Spark, and reads what it answers."""
_HOUSE: Final = Path(__file__).parent.parent


def authority(settings: Mapping[str, str], functions: Functions) -> str:
    """Return a text that differs wherever Spark might answer otherwise about a query, or we might ask otherwise.

    ``settings``: Spark's version, and those of its settings that change answers.
    """
    told = blake2b(json.dumps([dict(settings), functions.types], sort_keys=True).encode(), digest_size=16)
    return asker() + told.hexdigest()


def asker() -> str:
    """Return what every authority of this code begins with: how we ask, and which PySpark is asked."""
    told = blake2b(metadata.version("pyspark").encode(), digest_size=16)
    for room in ASKING:
        for source in sorted((_HOUSE / room).glob("*.py")):
            told.update(source.name.encode() + source.read_bytes())
    return told.hexdigest()
