"""Of what applying a project drops, nothing is said afterwards.  Over lists."""

from __future__ import annotations

from pathlib import Path

from deployed import Deployed

SOURCE = "CREATE SOURCE q (id INT)\nFROM files (path = 'later', format = 'csv', header = 'true')"
VIEW = "CREATE MATERIALIZED VIEW w REFRESH EVERY '1 hour' AS SELECT id FROM q"


def test_the_problem_of_what_is_dropped_goes_with_it(tmp_path: Path) -> None:
    """Damage: status names for ever what is not there any longer, and `run --once` fails for it."""
    found = Deployed(tmp_path)
    (tmp_path / "later").mkdir()
    found.write({"sources/q.sql": SOURCE, "views/w.sql": VIEW})
    found.deploy()
    assert "its schedule begins once q can be read" in found.core.problems["w"]
    found.write({"sources/q.sql": "", "views/w.sql": ""})
    assert sorted(found.deploy("w", "q")["dropped"]) == ["q", "w"]
    assert dict(found.core.problems) == {}
