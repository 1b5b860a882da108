"""Files that are staged in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.errors import Unavailable
from strandline.materialize.drivers.staged.place import LocalPlace


def test_a_file_that_a_successor_removes_while_it_is_written_is_no_fault_of_ours(tmp_path: Path) -> None:
    """Damage: a zombie ends with a traceback, and does not say that it was fenced."""
    place = LocalPlace(tmp_path)
    with pytest.raises(Unavailable, match=r"a/x was removed while it was written"), place.create("a/x") as file:
        file.write(b"rows")
        LocalPlace(tmp_path).remove("a/x")
    assert place.below("a") == []
