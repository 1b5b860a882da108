"""Words of state: what is said of an item is a problem, a wait or a notice, and never two of them.

- A *problem* stops the item until its operator acts, or another system answers again.
- A *wait* ends by itself: its sentence begins with `errors.WAITS`, and says for what.
- A *notice* tells something; it stops nothing.  An operator who has seen it acknowledges it (`acknowledged`).

The process that meets something says it in a sentence; here these are parted, for all that show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strandline.errors import is_wait


@dataclass(frozen=True, slots=True)
class States:
    """What is said of items, by their names; an item of which nothing is said is in none."""

    problems: dict[str, str]
    waiting: dict[str, str]
    notices: dict[str, list[str]]


def states(
    problems: Mapping[str, str],
    notices: Mapping[str, Sequence[str]],
    seen: Callable[[str, str], bool] = lambda _, __: False,
) -> States:
    """Return what was met, by what it is: ``problems``: why items are behind; ``notices``: what else was said of them.

    ``seen``: whether a notice of an item, by its name, is acknowledged; it is left out.

    >>> found = states({"v": "it waits for 's'", "s": "no answer"}, {"m": ["it waits for noon"], "t": ["a new column"]})
    >>> found.problems, found.waiting, found.notices
    ({'s': 'no answer'}, {'v': "it waits for 's'", 'm': 'it waits for noon'}, {'t': ['a new column']})
    """
    waits = {name: [why] for name, why in problems.items() if is_wait(why)}
    for name, said in notices.items():
        if found := [each for each in said if is_wait(each)]:
            waits.setdefault(name, []).extend(found)
    told = {name: [each for each in said if not seen(name, each)] for name, said in without_waits(notices).items()}
    return States(
        {name: why for name, why in problems.items() if not is_wait(why)},
        {name: "; ".join(each) for name, each in waits.items()},
        {name: said for name, said in told.items() if said},
    )


def without_waits(notices: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the notices among what else was said of items, by their names."""
    told = {name: [each for each in said if not is_wait(each)] for name, said in notices.items()}
    return {name: said for name, said in told.items() if said}
