"""What a source has beyond its other files: the rows of files that are to be withdrawn.

No row says which file it is of.  So all other files are read once more, and what the source has beyond them is of the
files that are not read.  They are read before anything is noted: if the rows cannot be told, nothing is changed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Filter, Get, Project
from strandline.algebra.scalar import Scalar, column, columns
from strandline.algebra.schema import ERROR
from strandline.controller.asking import reads
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.location.items import SharedSource, Source
from strandline.errors import InvalidUsage, SourceError, reason
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.contents import Half, Rows
from strandline.problem import cases_of
from strandline.sources.reader import SourceReader, TakenBack
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.sources.remap import RemapShard

_FAILED: Final = "__failed"


@dataclass
class OtherFiles:
    """The other files of a source, of which ``files`` are not read.

    They are read once: before anything is noted, and again only if the source has taken more of them since.
    ``noted``: the source may have been told already to go on without ``files``.
    """

    core: Core
    source: Source
    reader: SourceReader
    files: Sequence[str]
    epoch: int
    hold: Hold = field(default_factory=Hold)
    noted: bool = False
    _read: tuple[Offsets, Rows] | None = None

    @property
    def left(self) -> str:
        """How the source was left where its rows were not withdrawn, and what to do."""
        if not self.noted:
            return "nothing is changed; without --withdraw, the source goes on without the file, and its rows stay"
        return (
            "the source goes on without the file already, and its rows were not withdrawn; withdraw them later: "
            f"{withdrawal(self.source, self.files)}"
        )

    async def beyond(self, at: int) -> tuple[Rows, int]:
        """Return the rows that the source has beyond the other files, as updates of time ``at``, and their number.

        ``at``: or its latest time, if that is later.  It has them at its latest time, so what is bound and not durable
        yet is no difference.

        Raises `InvalidUsage` if the source lacks rows of the other files, or one of these cannot be read.
        """
        core, schema, engine = self.core, self.source.schema, self.core.engine
        handle = await core.readers.of(self.source.name)
        latest = await reads.latest(core, [handle])
        at = max(at, latest)
        remap = await RemapShard.open(await core.client.records(self.source.remap, self.epoch), self.epoch)
        bound = remap.remap.offsets_at(latest)
        there = await self._there(at, bound)
        held, errors = [await reads.updates(core, handle, latest, self.hold, half) for half in (Half.OK, Half.ERR)]

        async def good(frames: Sequence[Rows], *, negate: Sequence[bool]) -> Rows:
            """Return the rows of ``frames`` that are no errors: those of ``errors`` show that some may be."""
            both = await engine.union(schema, [*frames, errors], advance=at, negate=[*negate, True])
            names = (*((name, name) for name in schema.names), (_FAILED, ERROR))
            right = Filter(Get("rows", names), Scalar(exp.Is(this=column(_FAILED), expression=exp.Null())))
            return await engine.evaluate(Project(right, columns(schema.names)), {"rows": both})

        takes_back = isinstance(self.reader.records(""), TakenBack)
        if takes_back and (await engine.differences(await good([there], negate=[False]), schema)).missing:
            raise self._untold("other files take back rows of these")
        change = await good([held, there], negate=[False, True])
        found = await engine.differences(change, schema)
        if found.missing:
            raise self._untold(f"it does not have {found.missing} row(s) that its other files have now{self._before()}")
        return change, found.extra

    async def _there(self, at: int, bound: Offsets) -> Rows:
        """Return the rows of the other files up to ``bound``, as updates of time ``at`` or of an earlier one."""
        if self._read is None or self._read[0] != bound:
            await self.reader.commit(bound)  # so it knows what is durable; it lets nothing leave
            try:
                read = await self.reader.read([Slice(at, NOTHING_READ, bound)], table="", locate=False)
            except SourceError as error:
                raise self._untold(f"{_cause(error)}; withdraw the rows of both together, or put it back") from error
            self._read = bound, read
        return self._read[1]

    def _before(self) -> str:
        """Say what rows of before lack if the source has got columns since; empty: it has not."""
        anew = shlex.join(["strandline", "anew", self.source.name, "--apply"])
        lack = "rows that were read before it got a column have no value in it; to read all of its files again"
        return f" ({lack}: {anew})" if self.source.grown else ""

    def _untold(self, why: str) -> InvalidUsage:
        named = ", ".join(map(repr, self.files))
        return InvalidUsage(
            f"the rows of {named} cannot be told from those of other files of {self.source.name!r}: {why}; {self.left}"
        )


def _cause(error: SourceError) -> str:
    """Return what has happened, without the ways out of it."""
    return "; ".join(case.cause for case in cases_of(reason(error))) or str(error)


def withdrawal(source: Source | SharedSource, files: Sequence[str]) -> str:
    """Return the command that withdraws the rows of ``files``."""
    named = [word for file in files for word in ("--file", file)]
    return shlex.join(["strandline", "source", "skip", source.name, *named, "--withdraw", "--apply"])
