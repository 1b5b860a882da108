"""The laws of a source, as named predicates.

R2 (reclocking is `spec.target`) and R3 (each message has at most one time) compare two ways to compute one thing;
they hold by construction of `Remap` and are tested against the spec.  R1 and R4 speak about what a run does, so the
run asserts them: R1 whenever a remap is adopted, R4 before each commit upstream.  R4 is written without
`Remap.resume`, which it checks.
"""

from __future__ import annotations

from strandline.frontier.antichain import Frontier
from strandline.frontier.gauge import Offsets
from strandline.sources.reclock import Remap


def only_grows(before: Remap, after: Remap) -> bool:
    """R1: the remap is monotone: upper and since never go back, and at a time that was known it says what it said."""
    known = {b.time for b in (*before.bindings, *after.bindings) if after.since <= Frontier(b.time) < before.upper}
    return (
        before.upper <= after.upper
        and before.since <= after.since
        and all(before.offsets_at(time) == after.offsets_at(time) for time in known)
    )


def forgets_only_durable(resume: Offsets, remap: Remap, durable: Frontier) -> bool:
    """R4: all that upstream may forget happened before ``durable``, the meet of the source's uppers."""
    times = [remap.time_of(partition, offset - 1) for partition, offset in resume.entries]
    return all(time is not None and not durable.beyond(time) for time in times)
