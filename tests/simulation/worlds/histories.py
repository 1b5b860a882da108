"""What is asked of every world of one source: many histories, one fault at every point, planted bugs.

Of other worlds, too, planted bugs are (`must_break`).

``play`` makes the history of a seed, ``perform`` the script of the world with the faults that are chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, TypeAlias

from laws.broken import LawBrokenError
from planted.bugs import Bug
from planted.known import candidates, found, telling
from strandline.store.unreliable import Choose
from strandline.testing.simulation.kernel import Fate
from worlds.campaign import deal
from worlds.ingested import IngestedWorld
from worlds.one_fault import OneFault, Share, Tried, calm, pairs, tried, with_each
from worlds.persist import law_of
from worlds.processors import spread

PATIENCE: Final = (64, 1)
LANDINGS: Final = (0, 1, 2, 4, 8, 16, 32)

Play: TypeAlias = Callable[[int], IngestedWorld]
Perform: TypeAlias = Callable[[Choose, int], None]


def made(play: Play, seeds: Sequence[int]) -> tuple[Counter[str], int, set[str], set[tuple[str, Fate]]]:
    """Make histories; return what their users met, how many rounds they did, the distinct traces, and the fates."""
    marks: Counter[str] = Counter()
    rounds, traces, fates = 0, set(), set()
    for seed in seeds:
        world = play(seed)
        marks.update(world.marks)
        rounds += world.acknowledged
        traces.add(world.simulation.trace_hash())
        fates |= world.simulation.coverage()
    return marks, rounds, traces, fates


def judge(
    name: str, play: Play, seeds: Sequence[int], marks: AbstractSet[str], site: str, record_property: Any
) -> None:
    """Make histories on all processors, and judge whether they were worth it.

    Users meet all of ``marks``, and each fate comes at ``site``.
    """
    met_marks: Counter[str] = Counter()
    rounds, traces, fates = 0, set(), set()
    for some, many, distinct, met in deal(seeds, partial(made, play)):
        met_marks += some
        rounds += many
        traces |= distinct
        fates |= met
    assert set(met_marks) >= marks, "users meet what they are there to meet"
    assert len(traces) >= 0.99 * len(seeds)
    assert rounds >= 10 * len(seeds)
    assert {fate for at, fate in fates if at == site} == set(Fate)
    record_property("FIGURE", f"{name}.histories {len(seeds)} >={len(seeds)} pass")
    record_property("FIGURE", f"{name}.newest-seed {seeds[-1]} - info")
    record_property("FIGURE", f"{name}.rounds-per-history {rounds / len(seeds):.1f} >=10 pass")


def faults(perform: Perform, job: tuple[int, Share]) -> Tried:
    """Try a share of the pairs of point and fate of the script, with one patience."""
    patience, share = job

    def run(choose: OneFault) -> None:
        perform(choose, patience)

    points = calm(run)
    these = share.of(pairs(points))
    return tried(points, these, with_each(run, points, these, lambda: LANDINGS))


def one_fault_everywhere(name: str, perform: Perform, every: int, record_property: Any) -> None:
    """Try one in ``every`` pairs of point and fate, with either patience in turn, or all of them with both."""
    halves_of = {patience: (0, 1) if every == 1 else (n % 2,) for n, patience in enumerate(PATIENCE)}
    jobs = [(patience, Share(every * 2, half * every)) for patience, halves in halves_of.items() for half in halves]
    halves = list(spread(partial(faults, perform), jobs))
    for each in halves:
        assert not each.broken, each.broken
        assert each.reached == each.possible
    met, runs = sum(each.reached for each in halves), sum(each.runs for each in halves)
    record_property("FIGURE", f"{name}.crash-points {met}/{met},points={halves[0].points},runs={runs} all pass")


def must_break(
    bug: Bug,
    campaign: str,
    play: Callable[[int], object],
    laws: AbstractSet[str] | None,
    seeds_max: int,
    record_property: Any,
) -> None:
    """Make histories while ``bug`` lives, the one that is known to show it first, until one breaks one of ``laws``.

    ``laws``: None for all that the observers of the world judge by.
    """
    broken, tried_of_them = None, 0
    for seed in candidates(campaign, bug.name, seeds_max):
        tried_of_them += 1
        with bug.planted():
            law = broken_by(play, seed, laws)
        # The history of a seed that is known is one of those of the campaign, which the unmodified code makes, too.
        if law and (seed in telling(campaign) or not broken_by(play, seed, laws)):
            broken = (seed, law)
            break
    seed, law = broken or (seeds_max, "none")
    verdict = "pass" if broken else "miss"
    told = f"seed={seed},tried={tried_of_them},law={law} <={seeds_max} {verdict}"
    record_property("FIGURE", f"planted.{campaign}.{bug.name} {told}")
    assert broken, bug.mistake
    found(campaign, bug.name, seed)


def broken_by(play: Callable[[int], object], seed: int, laws: AbstractSet[str] | None = None) -> str:
    """Return the law among ``laws``, or of the world's observers, that the history of a seed breaks, if it breaks one.

    A bug may also end a history by what it raises: that is no law.
    """
    try:
        play(seed)
    except Exception as error:  # noqa: BLE001
        return law_of(error) if (isinstance(error, LawBrokenError) if laws is None else law_of(error) in laws) else ""
    return ""
