"""What persist has met and done since its client was opened: what nobody sees otherwise, because it ended well.

Retries are inside, so a store that fails every other time looks like one that is slow; these counters tell.  They are
kept by one process, in memory, for people: nothing is decided by them.

Source: design page "persist" (errors: retries are visible).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Metrics:
    """Counters of one `PersistClient`; all of them only grow."""

    retries: int = 0
    """Calls to a store that were repeated, after a failure or a lost race."""
    indeterminate: int = 0
    """Answers of a store that left open whether it did what it was asked."""
    witness_hits: int = 0
    """Commits that had landed though nobody had said so, recognised by what they left in the state."""
    corruption_errors: int = 0
    """Stored objects that failed their check."""
    notices: int = 0
    """Versions that were told by a notice and did not have to be fetched."""
    upkeep_failures: int = 0
    """Rollups, merges and collections that were due after a commit and could not be done; tried again later."""
    compactions: int = 0
    """Merges that took the place of what they were made of."""
    large_compactions: int = 0
    """Those among them that were large: an environment carries these out between commits."""
    gc_runs: int = 0
    """Collections of garbage that were carried out."""
    parts_deleted: int = 0
    """Objects that collections of garbage deleted."""

    def counts(self) -> dict[str, int]:
        """Return the counters by name."""
        return asdict(self)
