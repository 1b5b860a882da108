"""A session stages files, and a later one, which removes what earlier ones left, removes them meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.materialize.drivers.delta.delta_endpoint import DeltaEndpoint

from strandline.errors import Unavailable
from strandline.materialize.drivers.staged.place import LocalPlace
from strandline.testing.contracts.drivers.world import World


@pytest.mark.parametrize("call", ["create", "size"])
def test_a_file_that_a_successor_removes_while_it_is_staged_is_no_fault_of_ours(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a zombie ends with a traceback, and does not say that it was fenced."""
    world = World(DeltaEndpoint(tmp_path))
    world.write_round()
    runtime = world.runtime()
    real = getattr(LocalPlace, call)

    def late(self: LocalPlace, name: str) -> Any:
        if call == "create":  # its directory goes once the file is written
            raise FileNotFoundError(2, "No such file or directory", name)
        self.remove(name)
        return real(self, name)

    monkeypatch.setattr(LocalPlace, call, late)
    with pytest.raises(Unavailable, match="was removed while it was staged"):
        asyncio.run(runtime.advance())
