"""Numbers that look random and are functions of a seed, a purpose and the number of an event.

No state goes from one event to the next, so event 1 000 000 costs what event 1 does, and reading repeats by
construction.  The function is splitmix64's finalizer, over whole arrays.

Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators" (2014), section 5.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def words(seed: int, purpose: str, events: Integers) -> Words:
    """Return 64 bits for each of ``events``: those of another purpose or seed say nothing about them.

    >>> words(0, "bids", np.array([0, 1])).tolist() == words(0, "bids", np.array([0, 1, 2])).tolist()[:2]
    True
    """
    start = np.uint64(xxhash.xxh64_intdigest(purpose.encode(), seed % 2**64))
    with np.errstate(over="ignore"):  # wrapping around is what these multiplications are for
        mixed = start + (events.astype(np.uint64) + np.uint64(1)) * _GAMMA
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def below(seed: int, purpose: str, events: Integers, limit: int | Integers) -> Integers:
    """Return for each of ``events`` an integer from 0 on and before ``limit``, each about as likely as another."""
    return np.asarray(words(seed, purpose, events) % np.asarray(limit).astype(np.uint64)).astype(np.int64)
