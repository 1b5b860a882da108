"""Fresh histories of all worlds in one process: ``make fresh N=4000``.

The histories of each world begin at a seed that no run used before, or at ``SEED``; ``WORLD`` plays one world alone.
So ``make fresh WORLD=altered SEED=1257 N=1`` plays one history again.  Each world gets an equal share of ``N``, and
worlds take turns: whenever the command is ended, by Ctrl-C for example, all have been played about as often.

A history that breaks a law is printed with its seed at once, and the others go on.  At the end each world has a line of
figures.  The status is 1 if a law was broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from worlds import (
    altered,
    apart,
    persist,
    pushed,
    rebinding,
    replaced,
    streams,
    tables_users,
    webhook_users,
    whole,
    wrong,
)
from worlds.campaign import Played, newest
from worlds.cast import populate
from worlds.persist import law_of

Play: TypeAlias = Callable[[int], Played]

WORLDS: Final[Mapping[str, Play]] = {
    "altered": altered.play,
    "apart": apart.play,
    "persist": partial(persist.play, populate=populate),
    "pushed": pushed.play,
    "rebinding": rebinding.play_rebinding,
    "rebinding-splits": rebinding.play_rebinding_splits,
    "replaced": replaced.play,
    "split": pushed.play_split,
    "streams": streams.play,
    "tables": tables_users.play,
    "watched": partial(whole.play, watched=True),
    "webhook": webhook_users.play,
    "whole": whole.play,
    "wrong": wrong.play,
}
"""Every world, by the name of its campaign."""
TOLD_EVERY_S: Final = 30.0


@dataclass
class Figures:
    """What the histories of one world amount to."""

    histories: int = 0
    acknowledged: int = 0
    seconds: float = 0.0
    broken: int = 0


def shares(names: Sequence[str], first: int, histories: int) -> Iterator[tuple[str, int]]:
    """Yield each history as its world and its seed: the worlds in turn, so many in all.

    >>> list(shares(["a", "b"], 7, 3))
    [('a', 7), ('b', 7), ('a', 8)]
    """
    for n in range(histories):
        yield names[n % len(names)], first + n // len(names)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def play(worlds: Mapping[str, Play], first: int, histories: int) -> dict[str, Figures]:
    """Play histories, and print what breaks and how far it is."""
    found, begun = {name: Figures() for name in worlds}, time.monotonic()
    told = begun
    for n, (name, seed) in enumerate(shares(list(worlds), first, histories), 1):
        figures, at = found[name], time.process_time()
        try:
            figures.acknowledged += worlds[name](seed).acknowledged
        except KeyboardInterrupt:
            break
        except Exception as error:  # noqa: BLE001 - whatever a history ends with is a finding
            figures.broken += 1
            say(f"BROKEN {name} {seed}: law {law_of(error)}: {error}")
            say(f"       make fresh WORLD={name} SEED={seed} N=1")
        figures.histories += 1
        figures.seconds += time.process_time() - at
        if (now := time.monotonic()) - told >= TOLD_EVERY_S or n == histories:
            told = now
            broken = sum(each.broken for each in found.values())
            say(f"{n} of {histories} histories, {broken} broken, {now - begun:.0f} s")
    return found


def main(arguments: Sequence[str]) -> int:
    """Play what the arguments say; return the status."""
    parser = argparse.ArgumentParser(description="fresh histories of all worlds", allow_abbrev=False)
    parser.add_argument("histories", type=int, help="how many in all")
    parser.add_argument("--seed", type=int, help="where the seeds of each world begin; else at new ones")
    parser.add_argument("--world", choices=sorted(WORLDS), help="this one alone")
    asked = parser.parse_args(arguments)
    worlds = {asked.world: WORLDS[asked.world]} if asked.world else WORLDS
    first = newest() if asked.seed is None else asked.seed
    found = play(worlds, first, asked.histories)
    for name, each in found.items():
        rate = f"commits-per-history={each.acknowledged / max(1, each.histories):.1f},cpu-s={each.seconds:.0f}"
        verdict = "miss" if each.broken else "pass"
        say(f"FIGURE fresh.{name} histories={each.histories},from={first},broken={each.broken},{rate} 0 {verdict}")
    return int(any(each.broken for each in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
