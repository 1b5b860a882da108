"""Templates of journals and shards: connectors check them, and neither side uses them.

Strandline has neither journals nor shards.  A connector refuses a specification in which they are missing or not
valid, so these are the plainest that are.
"""

from __future__ import annotations

from typing import Any, Final

from strandline.materialize.wire.specs.names import part

_FRAGMENT_BYTES: Final = 1 << 28
_SECONDS: Final = 300


def journal(room: str, name: str) -> dict[str, Any]:
    """Return the fields of a journal's specification.

    >>> journal("recovery", "a/b")["name"]
    'recovery/strandline/a%2Fb'
    """
    return {
        "name": f"{room}/strandline/{part(name)}",
        "replication": 1,
        "labels": {},
        "fragment": {
            "length": _FRAGMENT_BYTES,
            "compression_codec": "GZIP",
            "refresh_interval": {"seconds": _SECONDS},
            "retention": {},
            "flush_interval": {},
        },
    }


def shard(name: str) -> dict[str, Any]:
    """Return the fields of a shard's specification."""
    return {
        "id": f"materialize/strandline/{part(name)}",
        "recovery_log_prefix": "recovery",
        "hint_prefix": "/strandline/hints",
        "hint_backups": 2,
        "max_txn_duration": {"seconds": _SECONDS},
        "min_txn_duration": {},
        "labels": {},
    }
