"""Trust: which processes the replicas of an instance are, and which of them are to run nothing.

A replica that has computed something wrong is *barred*: it is commanded nothing until its process is another one, or
until it is dropped and added again.  It stays connected, so that another process of it is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from strandline.controller.instances.link import Link
from strandline.instance.protocol.messages import Reconciled
from strandline.persist.shard.patience import Deadline
from strandline.problem import Problem, Stopped, Way

WRONG: Final = Problem(
    "replica-wrong",
    "replica {replica!r} of instance {instance!r} {computed_wrong}; {how_it_ends}",
    Stopped.NOTHING,
    (Way("restart the process of that replica"),),
    "What the other replicas computed.",
)
DISAGREE: Final = Problem(
    "replicas-disagree",
    "replica {replica!r} of instance {instance!r} and another one disagree about {stage!r} at {time}; {why}",
    Stopped.NOTHING,
)
UNKNOWN: Final = Problem(
    "repair-unknown",
    "whether {stage!r} is right again cannot be found out now: {why}",
    Stopped.NOTHING,
)
COMPLETE: Final = Problem(
    "wrong-for-ever",
    "{stage!r} is complete for ever, with what a wrong replica wrote: {kept}",
    Stopped.VIEW,
    (Way("define it anew, with all that reads it", "strandline anew {item:shell} --apply"),),
    "The wrong rows.",
)


@dataclass(frozen=True, eq=False)
class Process:
    """A process of a replica, since the replica was added."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Why a process of a replica runs nothing; ``before``: what it said that it had kept of what ran.

    ``moves``: until when what only one replica may run is left with it, if it does not say that it obeys.
    """

    why: str
    before: Reconciled | None
    moves: Deadline


class Trust:
    """What is known of the replicas' processes, by the names of the replicas."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        """Each as it was heard last."""
        self.bars: dict[str, Bar] = {}

    def bar(self, replica: str, link: Link, why: str, moves: Deadline) -> None:
        """Trust the process of a replica no longer, for ``why``, as an operator reads it; ``moves``: see `Bar`."""
        self.bars[replica] = Bar(why, link.heard.reconciled, moves)

    def obeys(self, replica: str, link: Link) -> bool:
        """Return whether a barred replica has said that it runs nothing."""
        return link.heard.reconciled is not None and link.heard.reconciled is not self.bars[replica].before

    def learn(self, links: Mapping[str, Link]) -> list[str]:
        """Take note of which processes the replicas are; return those that were barred and are other processes now."""
        lifted = []
        for name, link in links.items():
            known, incarnation = self.processes.get(name), link.heard.incarnation
            if incarnation and (known is None or known.incarnation != incarnation):
                self.processes[name] = Process(incarnation)
                if self.bars.pop(name, None) is not None:
                    lifted.append(name)
        return lifted

    def forget(self, replica: str) -> None:
        """Know nothing of a replica that was dropped."""
        self.processes.pop(replica, None)
        self.bars.pop(replica, None)
