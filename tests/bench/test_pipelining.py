"""`bench pipelining` sees transactions that follow each other, and the gap where nothing is read meanwhile."""

from __future__ import annotations

import pytest

from strandline.bench.endpoints.pipelining import measure_pipelining
from strandline.materialize.protocol import states


def test_the_next_transaction_is_there_when_the_endpoint_has_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an endpoint that takes long to commit is idle as long again, while the next rows are read."""
    pipelined = measure_pipelining(seconds=2, commit_s=0.3)
    assert pipelined["transactions"] >= 2
    due = states.Machine.due

    def after_the_other(self: states.Machine, upper: int, *, settles: bool = False) -> int | None:
        return due(self, upper, settles=settles) if isinstance(self.tail, states.Done) else None

    monkeypatch.setattr(states.Machine, "due", after_the_other)
    in_turn = measure_pipelining(seconds=2, commit_s=0.3)
    assert pipelined["gap_p50_ms"] < in_turn["gap_p50_ms"] / 1.5, (pipelined, in_turn)
