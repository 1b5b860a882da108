"""Scripts: conversations with one shard, what is said and what is answered, in text.

A block is a command, perhaps rows below it, ``----``, and the answer; a blank line ends it, ``#`` starts a comment.

    open w1 epoch=1              a writer, in a process of its own   (process=p shares one)
    append w1 0 1 token=A        rows below: ``k time diff``; to ``-`` closes; blob=1: as an object of its own
    close p                      the process is gone; so are its handles
    hold c0 epoch=1              register a critical reader, or take it over
    downgrade c0 5 | expire c0   ``-`` is the empty frontier
    lease r1                     register a leased reader
    release r1 7 | beat r1       let go of times before 7 | show that it is there
    leave r1                     give the lease up
    later 60                     the clock moves on, by seconds
    overdue w1                   drop the leased readers whose beats are overdue
    refresh w1                   what this handle sees after fetching
    read r1 3 | again r1         what a reader is given to read; reading it (again); done r1 gives it back
    listen l1 0 | next l1        follow the shard from there | what is new since
    plan k1 | merge k1           a compactor makes up its mind to merge everything, and does it
    rollup w1                    write a rollup now
    gc k1 to=9                   collect what only versions before that name   (without to: all that is dead)
    sweep k1                     delete what was leaked
    finalize k1                  delete what can no longer be read or written
    evolve w1 `k` string, ...    give the shard another schema
    stored                       how many parts lie in Blob
    shard | batches | rollups | snapshot 3 | versions     what a fresh process sees
    fates lost late done         what becomes of the next attempts to change something
    meanwhile | <command>        what another user does while the next one waits
    land                         everything late happens
    truncate                     versions before the newest rollup, and older rollups, are collected
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from strandline.errors import StrandlineError
from strandline.frontier import EMPTY, Frontier
from strandline.persist.shard.holds import expire_overdue
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch
from strandline.persist.shard.trace import Merged, Stale, everything
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync

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
        self._given: dict[str, Any] = {}
        self._listening: dict[str, Any] = {}
        self._plans: dict[str, Any] = {}

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

    async def _do_append(
        self, name: str, lower: str, upper: str, token: str | None = None, blob: str | None = None, rows: Any = ()
    ) -> str:
        bound = int(lower) + 10**6 if upper == "-" else int(upper)
        inline = 1 << 14 if blob is None else 0
        staged = [self._place.stage("s", int(lower), bound, rows, inline=inline)] if rows else []
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

    async def _do_read(self, name: str, as_of: str) -> str:
        self._given[name] = await self._handles[name][1].snapshot(int(as_of), timeout_s=0)
        return f"of v{self._given[name].seqno}"

    async def _do_again(self, name: str) -> str:
        return _shown(await self._place.read_rows(self._given[name]))

    async def _do_done(self, name: str) -> str:
        self._handles[name][1].release(self._given.pop(name))
        return "noted"

    async def _do_listen(self, name: str, as_of: str) -> str:
        reader = await self._place.client().reader("s", self._place.schema, "s")
        self._listening[name] = reader.listen(int(as_of))
        return "listening"

    async def _do_next(self, name: str) -> str:
        contents, frontier = await anext(self._listening[name])
        return f"{_shown(await self._place.read_rows(contents))}\nup to {frontier}"

    async def _do_plan(self, name: str) -> str:
        client = self._processes.setdefault(name, self._place.client(self._place.engine, grace_ms=0))
        compactor = await client.compactor("s")
        self._plans[name] = replace(everything(await compactor._machine.refresh()), inline_bytes_max=0)
        return " ".join(f"[{b.lower.at},{b.upper.at})" for b in self._plans[name].inputs)

    async def _do_merge(self, name: str) -> str:
        compactor = await self._processes[name].compactor("s")
        match await compactor.carry_out(self._plans.pop(name)):
            case Merged():
                return "merged"
            case Stale(why):
                return f"stale: {why}"
        raise AssertionError("a merge has two outcomes")

    async def _do_rollup(self, name: str) -> str:
        machine = self._handles[name][1]._machine
        await machine.refresh()
        await machine.roll_up()
        return f"rollup of v{machine.state.rollups[-1].seqno}"

    async def _collector(self, name: str) -> Any:
        client = self._processes.setdefault(name, self._place.client(self._place.engine, grace_ms=0))
        return await client.collector("s")

    async def _do_gc(self, name: str, to: str | None = None) -> str:
        done = await (await self._collector(name)).collect(None if to is None else int(to))
        return f"{done.parts} parts, {done.rollups} rollups, {done.versions} versions"

    async def _do_sweep(self, name: str) -> str:
        return f"{len(await (await self._collector(name)).sweep())} swept"

    async def _do_finalize(self, name: str) -> str:
        return f"{await (await self._collector(name)).finalize()} deleted"

    async def _do_evolve(self, name: str, *words: str) -> str:
        schema = " ".join(words)
        await self._handles[name][1].evolve(schema)
        return self._place.state().schema

    async def _do_stored(self) -> str:
        return f"{sum('/parts/' in key for key in self._place.objects)} parts"

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
        return _shown(self._place.snapshot(int(as_of)))

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


def _shown(rows: Any) -> str:
    return "\n".join(f"{k} {time} {diff:+}" for k, time, diff in rows) or "nothing"


def describe(state: Any) -> str:
    """A state in one line."""
    return f"v{state.seqno} since {state.since} upper {state.upper} epoch {state.epoch}"
