"""A name that a table's place cannot have is refused before anything is written."""

from __future__ import annotations

import pytest

from strandline.errors import DefinitionError
from strandline.materialize.drivers.staged.place import PART_LENGTH_MAX, path_part


@pytest.mark.parametrize("name", ["", "x" * (PART_LENGTH_MAX + 1), "é" * (PART_LENGTH_MAX // 6 + 1), "\ud800"])
def test_a_name_that_no_directory_can_have_is_refused(name: str) -> None:
    """Damage: a table is written beside its directory, or its first transaction fails instead of CREATE."""
    with pytest.raises(DefinitionError, match="the name"):
        path_part(name)


def test_the_longest_name_of_a_directory_is_taken() -> None:
    """Damage: a table that was made by an earlier version is refused."""
    assert path_part("x" * PART_LENGTH_MAX) == "x" * PART_LENGTH_MAX
