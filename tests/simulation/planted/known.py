"""Of each planted bug a seed whose history showed it; of each fate of a call that was met, one that met it.

A bug's seed is tried first, and the unmodified code makes the same history among those of its campaign: so a bug costs
one history, and what shows it is right without it.  Where no history of that seed shows the bug any longer, because the
worlds draw otherwise, the search goes on from seed 0; ``STRANDLINE_SIM_RECORD=1`` writes down what it finds
(`SEEDS_FILE`; in one process).  The seeds of fates are among the histories of their campaign too: so a few thousand
meet what only some in a thousand do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

RECORD: Final = "STRANDLINE_SIM_RECORD"
SEEDS_FILE: Final = Path(__file__).with_name("seeds.json")
FATES: Final = "fates of "
"""Before the name of a campaign: the seeds that met what may become of a call."""
FINDINGS: Final[Mapping[str, frozenset[int]]] = {
    "persist": frozenset({210, 2_099, 1_019_697, 1_026_041}),
    "whole": frozenset(
        {2_011_788, 2_018_075, 1_796_640_097_767, 1_796_823_154_348, 1_797_000_000_213, 1_797_200_001_225}
    ),
    "apart": frozenset({91_082, 93_685, 204_811, 301_230, 1_796_738_733_893, 1_797_500_001_246}),
    "pushed": frozenset({1_796_832_340_500}),
    "replaced": frozenset({61_150, 1_797_300_001_710}),
    "altered": frozenset({1_257, 1_796_847_213_094, 1_796_945_130_893, 1_796_951_902_118, 1_797_034_609_031}),
    "wrong": frozenset({80_586, 1_500_001_666}),
}
"""Seeds that found a bug of ours: each stays among the histories of its campaign."""


def known(campaign: str) -> dict[str, int]:
    """Return the seeds of a campaign's bugs, by their names."""
    held: dict[str, dict[str, int]] = json.loads(SEEDS_FILE.read_text())
    return held.get(campaign, {})


def telling(campaign: str) -> frozenset[int]:
    """Return every seed of a campaign that showed something once: a planted bug, one of ours, or what is rare."""
    shown = (*known(campaign).values(), *known(FATES + campaign).values())
    return FINDINGS.get(campaign, frozenset()) | frozenset(shown)


def candidates(campaign: str, bug: str, seeds_max: int) -> Iterator[int]:
    """Yield the seeds to try: the known one, then all below ``seeds_max``; these alone if what is found is recorded."""
    first = [] if os.environ.get(RECORD) else [seed for name, seed in known(campaign).items() if name == bug]
    return chain(first, (seed for seed in range(seeds_max) if seed not in first))


def found(campaign: str, bug: str, seed: int) -> None:
    """Write down the seed that showed a bug, or met a fate, if that was asked for."""
    if not os.environ.get(RECORD):
        return
    held = json.loads(SEEDS_FILE.read_text())
    held.setdefault(campaign, {})[bug] = seed
    SEEDS_FILE.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")
