"""The environment as programs use it: plain calls, over one event loop in one thread.

Every call is synchronous and returns when what it says is true; calls from several threads take turns.
"""

from typing import TYPE_CHECKING

from strandline import lazily

if TYPE_CHECKING:
    from strandline.client.cancelling import Cancel, Leaving, Outcome, ended_by, heeding_interrupts, present
    from strandline.client.environment import Environment
    from strandline.client.events import Progress, Updates
    from strandline.client.opening import (
        ListeningReplica,
        open,  # noqa: A004  # the public name is `strandline.open`
        prepare,
        replicate,
    )
    from strandline.client.preparing import NextVersion
    from strandline.client.reading import Collection
    from strandline.client.subscribing import Events
    from strandline.client.writing import Transaction

__all__ = [
    "Cancel",
    "Collection",
    "Environment",
    "Events",
    "Leaving",
    "ListeningReplica",
    "NextVersion",
    "Outcome",
    "Progress",
    "Transaction",
    "Updates",
    "ended_by",
    "heeding_interrupts",
    "open",
    "prepare",
    "present",
    "replicate",
]

__getattr__ = lazily.names(
    __name__,
    {
        **dict.fromkeys(
            ("Cancel", "Leaving", "Outcome", "ended_by", "heeding_interrupts", "present"),
            "strandline.client.cancelling",
        ),
        "Collection": "strandline.client.reading",
        "Environment": "strandline.client.environment",
        "Events": "strandline.client.subscribing",
        "ListeningReplica": "strandline.client.opening",
        "NextVersion": "strandline.client.preparing",
        "Progress": "strandline.client.events",
        "Transaction": "strandline.client.writing",
        "Updates": "strandline.client.events",
        **dict.fromkeys(("open", "prepare", "replicate"), "strandline.client.opening"),
    },
)
