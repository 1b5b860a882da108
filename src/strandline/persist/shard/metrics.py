"""Counters of what persist did since its client was opened, such as retries that ended well.

Persist retries inside, so a store that fails every other time only looks slow; these counters show the failures.  Each
process keeps its counters in memory, for operators; no decision depends on them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Metrics:
    """Counters of one `PersistClient`; all of them only grow."""

    retries: int = 0
    """Calls to a store that were repeated, after a failure or a lost race."""
    indeterminate: int = 0
    """Calls to a store whose outcome is unknown."""
    witness_hits: int = 0
    """Commits that landed although their answer was lost, recognised by what they left in the state."""
    corruption_errors: int = 0
    """Stored objects that failed their check."""
    notices: int = 0
    """Versions that came with a notice and did not have to be fetched."""
    upkeep_failures: int = 0
    """Rollups, merges and collections that were due after a commit and could not be done; tried again later."""
    compactions: int = 0
    """Merges whose output replaced their inputs."""
    large_compactions: int = 0
    """The large ones among them: an environment carries these out between commits."""
    gc_runs: int = 0
    """Collections of garbage that were carried out."""
    parts_deleted: int = 0
    """Objects that collections of garbage deleted."""

    def counts(self) -> dict[str, int]:
        """Return the counters by name."""
        return asdict(self)
