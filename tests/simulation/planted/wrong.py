"""Bugs that are planted in how a wrong replica is found, stopped, and what it wrote is withdrawn.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from planted.bugs import Bug, registrar
from strandline.compute.sink.actor import Sink
from strandline.controller.asking import wrong_replicas
from strandline.controller.asking.wrong_replicas import WrongReplicas
from strandline.controller.instances.replicas import Replicas
from strandline.persist.shard.patience import Deadline

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


@bug("the replica that finds something wrong is taken to have written it", (WrongReplicas, "_author"))
def reporter_blamed(self: WrongReplicas, report: Any) -> str:
    """Name the right one."""
    return report.replica


@bug("what a replica computes from wrong rows is taken for its own mistake", (WrongReplicas, "_right_before"))
async def before_unseen(self: WrongReplicas, report: Any, stage: Any) -> bool:
    """Look at nothing before."""
    return True


@bug("a replica that was given wrong rows as certified stands by what it made of them", (Sink, "_compare"))
async def stands_by_it(self: Sink, before: Any) -> None:
    """Recompute nothing, and owe what it has computed."""
    found = self.disagreed
    left = await self._engine.differences(await self._correction.ok(0), self.schema)
    self.disagreed = replace(found, missing=left.missing, extra=left.extra, example=left.example)


@bug("a replica that is named runs on", (Replicas, "bar"))
def never_barred(self: Replicas, replica: str, why: str) -> None:
    """Stop nothing."""


@bug("a replica that is barred is not commanded to run nothing", (Replicas, "bar"))
def barred_in_silence(self: Replicas, replica: str, why: str) -> None:
    """Only take note of it."""
    self.trust.bar(replica, self.links[replica], why, Deadline(self._clock, 0))


@bug("a view whose wrong rows no replica owes to withdraw is not audited", (wrong_replicas, "audited"))
def audits_lost(catalog: Any, name: str) -> Any:
    """Change nothing."""
    return catalog


@bug("only the shard that replicas disagreed about is compared", (WrongReplicas, "_shards_of"))
def others_unseen(self: WrongReplicas, instance: str) -> tuple[str, ...]:
    """Look at no other one."""
    return ()
