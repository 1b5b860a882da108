"""Replicas that are wrong: found when two of them disagree, named, and stopped; the views go on.

Replicas run the same commands, so from the same inputs they compute the same rows.  One that loses a race and would
have appended others reports it (`compute/sink/disagreement.py`).  Then the controller recomputes what the shard must
hold then, by the full plan of its stage.  If the shard holds just that, the one that reported is wrong; if not, the
other one is.  A replica that computes a change from rows that were wrong before makes no mistake of its own, so no
replica is wrong by what follows wrong rows; unless what the one that reported would have written is right all the same.

A wrong replica is barred (`instances/trust.py`) until its process is another one, as long as a right one is connected.
What it has written is withdrawn by the others; if that does not come to pass, the view is audited.  One that writes
although it is barred is fenced: the epoch under which replicas write is raised.

What cannot be read any longer is not judged: a replica that is wrong is so again.  This runs beside ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from strandline.compute.sink.disagreement import Disagreement
from strandline.controller.asking.recomputing import Recomputed, recomputed
from strandline.controller.core import Core
from strandline.controller.instances.replicas import Replicas
from strandline.controller.location.audits import audited
from strandline.errors import AsOfError, FencedError, reason
from strandline.frontier.antichain import MINIMUM, as_time
from strandline.plane.reading import Differences

AUDIT_AFTER: Final = 3
"""A shard that is still wrong after so many looks at it is audited; after twice as many again, and so on."""
UNDECIDED_SHARE: Final = 0.1
"""What could not be decided is decided again once it has taken this share of the time since."""


@dataclass(frozen=True, slots=True)
class _Report:
    """What a replica has reported of a shard of its instance."""

    instance: Replicas
    replica: str
    shard: str
    found: Disagreement

    @property
    def place(self) -> tuple[str, str, str]:
        """Which report it is: the next one of the same place takes its place."""
        return self.instance.name, self.replica, self.shard

    @property
    def time(self) -> int:
        """The last time at which the shard holds what they disagree about."""
        lower, upper = as_time(self.found.lower), self.found.upper
        return lower if upper.empty else as_time(upper) - 1


@dataclass(frozen=True, slots=True)
class _Named:
    """A process of a replica that was found wrong: in which view, and what to say of it."""

    incarnation: str
    view: str
    why: str


@dataclass(slots=True)
class _Doubted:
    """A shard that was wrong: in which view, what an operator reads, how often it was looked at since, how it ends.

    ``pause_until_ms``: when a report of it that cannot be decided is looked at again.
    """

    instance: str
    view: str
    why: str = ""
    looks: int = 0
    patience: int = AUDIT_AFTER
    wrong: bool = False
    pause_until_ms: int = 0


@dataclass(slots=True)
class WrongReplicas:
    """Judges what the replicas of one environment report: `turn` beside ticks, `settle` between them."""

    core: Core
    _judged: dict[tuple[str, str, str], tuple[str, Disagreement]] = field(default_factory=dict)
    _named: dict[tuple[str, str], _Named] = field(default_factory=dict)  # by instance and replica
    _doubted: dict[str, _Doubted] = field(default_factory=dict)  # by shard
    _audits: set[str] = field(default_factory=set)  # the views that are to be audited
    _fence: bool = False

    async def turn(self) -> None:
        """Judge what was reported since, stop what is wrong, and look whether what was wrong is right by now.

        Raises `FencedError` if another environment has taken over.  What cannot be judged now is judged later.
        """
        for report in list(self._reports()):
            await self._judge(report)
        self._stop()
        for shard in [shard for shard, doubted in self._doubted.items() if doubted.wrong]:
            await self._look(shard, self._doubted[shard])
        self.core.health.wrong = self._problems()

    async def settle(self) -> None:
        """Ask for the audits that are due, and fence what does not obey: between ticks, as it changes the catalog.

        Raises what stores raise, and `FencedError`; what could not be done is done another time.
        """
        epoch = self.core.require_writing().epoch
        while self._audits:
            name = min(self._audits)
            await self.core.catalogs.change(epoch, partial(audited, name=name))
            self._audits.discard(name)
        if self._fence:
            await self.core.catalogs.change(epoch, lambda catalog: catalog.with_writes_raised(epoch))
            self._fence = False

    # ---- judging -----------------------------------------------------------------------------------------------------

    def _reports(self) -> Iterator[_Report]:
        """Yield what was not judged yet of what the replicas that are trusted have reported."""
        for instance in self.core.require_writing().running.instances.values():
            for name, link in instance.links.items():
                for shard, found in link.heard.disagreements.items() if name not in instance.trust.bars else ():
                    report = _Report(instance, name, shard, found)
                    if self._judged.get(report.place) != (link.heard.incarnation, found):
                        yield report

    async def _judge(self, report: _Report) -> None:
        clock, link = self.core.assembly.clock, report.instance.links[report.replica]
        doubted, begun = self._doubted.get(report.shard), clock.now_ms()
        if doubted is not None and begun < doubted.pause_until_ms:
            return
        known = link.heard.incarnation, report.found
        try:
            stage = await recomputed(self.core, report.instance.name, report.shard)
            decided = stage is None or await self._decided(report, stage)
        except FencedError:
            raise
        except AsOfError:
            decided = True  # what is past is not judged
        except Exception as error:  # noqa: BLE001 - what cannot be judged stops nothing
            self._doubt(report, stage).why = f"{_disagree(report)}, and what is right was not found: {reason(error)}"
            decided = False
        if decided:
            self._judged[report.place] = known
        if doubted is not None:
            doubted.pause_until_ms = clock.now_ms() + round((clock.now_ms() - begun) / UNDECIDED_SHARE)
