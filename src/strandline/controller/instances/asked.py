"""Peeks that the replicas of an instance are asked, all of them: the first answer counts, and each peek has one.

A replica that answers with an error, or is gone, is not waited for.  If none is left, there is no answer: the caller
then reads the rows itself, which is slower and finds out what is wrong, if anything is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from strandline.controller.instances.history import History
from strandline.controller.instances.link import Link
from strandline.instance.protocol.messages import CancelPeeks, Peek, PeekResponse
from strandline.persist.shard.patience import Deadline

LOOK_S: Final = 0.002
"""How often several replicas are looked at in turn, while the first answer is waited for."""


@dataclass(eq=False)
class _Question:
    """A peek that was asked: its answer, and which replicas have none.

    ``held``: answers of replicas that may not answer now, by replica and incarnation; they count once these may.
    """

    rows: bytes | None = None
    held: dict[tuple[Link, str], bytes] = field(default_factory=dict)
    without: list[Link] = field(default_factory=list)


class Asked:
    """The peeks that are open.

    The history of commands holds them, so that a replica that connects meanwhile is asked too.
    """

    def __init__(
        self, history: History, say: Callable[[Peek | CancelPeeks], None], obeying: Callable[[], Sequence[Link]]
    ) -> None:
        """``say`` sends a command to all replicas and keeps it in ``history``.  ``obeying``: those that may answer."""
        self._history = history
        self._say = say
        self._obeying = obeying
        self._open: dict[str, _Question] = {}

    async def ask(self, peek: Peek, deadline: Deadline) -> bytes | None:
        """Return the first answer to ``peek``; None if no replica has one by the deadline, or all have failed.

        If the caller is cancelled, so is the peek.
        """
        if not self._obeying():
            return None
        question = self._open[peek.uuid] = _Question()
        try:
            self._say(peek)
            await self._wait(question, deadline)
        finally:
            del self._open[peek.uuid]
            if question.rows is None:
                self._say(CancelPeeks((peek.uuid,)))
            else:
                self._history.answered(peek.uuid)
        return question.rows

    async def _wait(self, question: _Question, deadline: Deadline) -> None:
        looked = 0
        while True:
            obeying = self._obeying()
            held = [question.held.get((link, link.heard.incarnation)) for link in obeying] if question.held else []
            question.rows = next((rows for rows in (question.rows, *held) if rows is not None), None)
            waited = [link for link in obeying if link not in question.without]
            if question.rows is not None or not waited or (left_s := deadline.left_s()) <= 0:
                return
            await waited[looked % len(waited)].hear(left_s if len(waited) == 1 else min(LOOK_S, left_s))
            looked += 1

    def answered(self, link: Link, answer: PeekResponse) -> None:
        """Take note of an answer.

        It is ignored if its peek is not open, because it was answered or given up.  It is held if ``link`` may not
        answer: its replica is no longer trusted, or has not said yet that it runs what it is to run.
        """
        question = self._open.get(answer.uuid)
        if question is None or question.rows is not None:
            return
        if answer.rows is None:
            question.without.append(link)
        elif link in self._obeying():
            question.rows = answer.rows
        else:
            question.held[link, link.heard.incarnation] = answer.rows
