"""Scripts: conversations with one shard, what is said and what is answered, in text.

A block is a command, perhaps rows below it, ``----``, and the answer; a blank line ends it, ``#`` starts a comment.

    open w1 epoch=1              a writer, in a process of its own   (process=p shares one)
    append w1 0 1 token=A        rows below: ``k time diff``; to ``-`` closes
    close p                      the process is gone; so are its handles
    hold c0 epoch=1              register a critical reader, or take it over
    downgrade c0 5 | expire c0   ``-`` is the empty frontier
    lease r1                     register a leased reader
    release r1 7 | beat r1       let go of times before 7 | show that it is there
    leave r1                     give the lease up
    later 60                     the clock moves on, by seconds
    overdue w1                   drop the leased readers that nobody has heard of
    refresh w1                   what this handle sees after fetching
    shard | batches | rollups | snapshot 3 | versions     what a fresh process sees
    fates lost late done         what becomes of the next attempts to change something
    meanwhile | <command>        what somebody does while the next one waits
    land                         everything late happens
    truncate                     versions before the newest rollup, and older rollups, are collected

Source: craft page "style" (14: state machines are tested by scripts that read like a conversation).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.errors import StrandlineError
from strandline.frontier.antichain import EMPTY, Frontier
from strandline.persist.holds import expire_overdue
from strandline.persist.state import Appended, Fenced, UpperMismatch
from strandline.store.unreliable import Outcome
from strandline.testing.simulation import run_sync

ANSWER = "----"


@dataclass(frozen=True)
class Block:
    """One exchange: the comment lines above it, what is said, what is answered."""

    comment: tuple[str, ...]
    said: tuple[str, ...]
    answer: str

    def __str__(self) -> str:
        return "\n".join((*self.comment, *self.said, ANSWER, *self.answer.splitlines()))


def blocks(text: str) -> Iterator[Block]:
    """Parse a script."""
    comment: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        comment += [line for line in lines if line.startswith("#")]
        lines = [line for line in lines if not line.startswith("#")]
        if not lines:
            comment.append("")
            continue
        cut = lines.index(ANSWER)
        yield Block(tuple(comment), tuple(lines[:cut]), "\n".join(lines[cut + 1 :]))
        comment = []


def rewrite(path: Path, answers: list[str]) -> None:
    """Put ``answers`` in the place of what the script at ``path`` expects."""
    new = [Block(b.comment, b.said, answer) for b, answer in zip(blocks(path.read_text()), answers, strict=True)]
    path.write_text("\n\n".join(map(str, new)) + "\n")


def frontier(word: str) -> Frontier:
    """A frontier, as scripts write it."""
    return EMPTY if word == "-" else Frontier(int(word))


class Conversation:
    """The shard ``s`` of ``place``, and everybody who talks to it."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._processes: dict[str, Any] = {}
        self._handles: dict[str, tuple[str, Any]] = {}  # by name: its process, and itself
        self._overheard: list[str] = []

    def answer(self, said: tuple[str, ...]) -> str:
        """Do what is said; return what comes of it."""
        if said[0].startswith("meanwhile | "):
            later = (said[0].removeprefix("meanwhile | "), *said[1:])
            self._place.clock.meanwhile.append(lambda: self._meanwhile(later))
            return "noted"
        found = run_sync(self._answer(said))
        overheard, self._overheard = self._overheard, []
        return "\n".join([*overheard, found])

    async def _meanwhile(self, said: tuple[str, ...]) -> None:
        self._overheard.append(f"meanwhile: {await self._answer(said)}")

    async def _answer(self, said: tuple[str, ...]) -> str:
        verb, *words = said[0].split()
        options = dict(word.split("=") for word in words if "=" in word)
        act: Callable[..., Coroutine[Any, Any, str]] = getattr(self, f"_do_{verb}")
        rows = [[k, int(time), int(diff)] for k, time, diff in map(str.split, said[1:])]
        try:
            return await act(
                *(word for word in words if "=" not in word), **options, **({"rows": rows} if rows else {})
            )
        except StrandlineError as error:
            return f"{type(error).__name__}: {error}"

    async def _do_open(self, name: str, epoch: str = "1", process: str = "", rollups: str = "128") -> str:
        process = process or f"of {name}"
        client = self._processes.setdefault(process, self._place.client(rollup_every=int(rollups)))
        self._handles[name] = (process, await client.writer("s", int(epoch), schema=self._place.schema.ddl))
        return await self._do_refresh(name)

    async def _do_close(self, process: str) -> str:
        gone = [name for name, (of, _) in self._handles.items() if of in {process, f"of {process}"}]
        self._handles = {name: held for name, held in self._handles.items() if name not in gone}
        for of in (process, f"of {process}"):
            self._processes.pop(of, None)
        return f"gone: {' '.join(gone)}"

    async def _do_append(self, name: str, lower: str, upper: str, token: str | None = None, rows: Any = ()) -> str:
        bound = int(lower) + 10**6 if upper == "-" else int(upper)
        staged = [self._place.stage("s", int(lower), bound, rows)] if rows else []
        append = self._handles[name][1].compare_and_append(staged, frontier(lower), frontier(upper), token=token)
        match await append:
            case Appended(now):
                return f"appended, upper {now}"
            case UpperMismatch(actual):
                return f"mismatch, upper {actual}"
            case Fenced(epoch):
                return f"fenced by epoch {epoch}"
        raise AssertionError("an append has three outcomes")

    async def _do_hold(self, name: str, epoch: str = "1") -> str:
        process = f"of {name}@{epoch}"
        client = self._processes.setdefault(process, self._place.client())
        self._handles[f"{name}@{epoch}"] = (process, await client.since("s", name, int(epoch)))
        return f"holds {self._handles[f'{name}@{epoch}'][1].since}"

    async def _do_downgrade(self, name: str, to: str) -> str:
        return f"holds {await self._handles[name][1].downgrade(frontier(to))}"

    async def _do_expire(self, name: str) -> str:
        await self._handles[name][1].expire()
        return "gone"

    async def _do_lease(self, name: str) -> str:
        process = f"of {name}"
        client = self._processes.setdefault(process, self._place.client())
        self._handles[name] = (process, await client.leased_reader("s", self._place.schema, "s"))
        return f"holds {self._handles[name][1]._lease.since}"

    async def _do_release(self, name: str, to: str) -> str:
        return f"holds {await self._handles[name][1].downgrade_since(frontier(to))}"

    async def _do_beat(self, name: str) -> str:
        await self._handles[name][1].beat()
        return "heard"

    async def _do_leave(self, name: str) -> str:
        await self._handles[name][1].close()
        return "gone"

    async def _do_later(self, seconds: str) -> str:
        self._place.clock.now += 1000 * int(seconds)
        return "noted"

    async def _do_overdue(self, name: str) -> str:
        dropped = await self._handles[name][1]._machine.commit(expire_overdue)
        return f"{len(dropped)} dropped"

    async def _do_refresh(self, name: str) -> str:
        return describe(await self._handles[name][1].refresh())

    async def _do_shard(self) -> str:
        return describe(self._place.state())

    async def _do_batches(self) -> str:
        return " ".join(
            f"[{b.lower.at},{'' if b.upper.empty else b.upper.at})x{b.rows}" for b in self._place.state().batches
        )

    async def _do_rollups(self) -> str:
        there = sorted(key.split("/")[2].split("-")[0] for key in self._place.objects if "/rollup/" in key)
        return f"named {' '.join(str(r.seqno) for r in self._place.state().rollups)}; stored {' '.join(there)}"

    async def _do_snapshot(self, as_of: str) -> str:
        return "\n".join(f"{k} {time} {diff:+}" for k, time, diff in self._place.snapshot(int(as_of))) or "nothing"

    async def _do_versions(self) -> str:
        return " ".join(f"v{version.seqno}" for version in self._place.versions["s"])

    async def _do_fates(self, *fates: str) -> str:
        self._place.plan.extend(Outcome(fate) for fate in fates)
        return "noted"

    async def _do_land(self) -> str:
        late = len(self._place.consensus.late)
        await self._place.consensus.land()
        return f"{late} landed"

    async def _do_truncate(self) -> str:
        *old, newest = self._place.state().rollups
        for rollup in old:
            self._place.objects.pop(rollup.key, None)
        return f"{await self._place.consensus.truncate('s', newest.seqno)} versions collected"


def describe(state: Any) -> str:
    """A state in one line."""
    return f"v{state.seqno} since {state.since} upper {state.upper} epoch {state.epoch}"
