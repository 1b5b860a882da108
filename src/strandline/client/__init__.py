"""The environment as programs use it: plain calls, over one event loop in one thread.

Every call is synchronous and returns when what it says is true; calls from several threads take turns.
"""

from strandline.client.cancelling import Cancel
from strandline.client.environment import Environment
from strandline.client.opening import (
    open,  # noqa: A004  # the public name is `strandline.open`
    prepare,
    replicate,
)
from strandline.client.preparing import NextVersion
from strandline.client.reading import Collection
from strandline.client.replicating import ListeningReplica
from strandline.client.subscribing import Events, Progress, Updates
from strandline.client.writing import Transaction

__all__ = [
    "Cancel",
    "Collection",
    "Environment",
    "Events",
    "ListeningReplica",
    "NextVersion",
    "Progress",
    "Transaction",
    "Updates",
    "open",
    "prepare",
    "replicate",
]
