"""What docs/stores.md shows is accepted as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.controller.defining.project.files import load
from strandline.wiring.locations import consensus_of, location_of

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "stores.md").read_text()
SETTINGS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SUITES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", SETTINGS)
def test_the_settings_that_are_shown_are_read(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the first thing that an operator copies is refused."""
    monkeypatch.setenv("STRAND_CONSENSUS", "postgresql://strand:secret@db/strand?schema=orders")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "s3").write_text("hunter2\n")
    (tmp_path / "strandline.yml").write_text(text)
    loaded = load(tmp_path)
    location = location_of(loaded.location, loaded.config.get("storage", {}))
    shown = f"{location} {consensus_of(loaded.consensus, location)}"
    assert "hunter2" not in shown
    assert "secret" not in shown.replace("secret_access_key", "")


@pytest.mark.parametrize("text", SUITES)
def test_the_suite_that_is_shown_runs(text: str, tmp_path: Path) -> None:
    """Damage: the author of a store cannot find out whether it keeps the contract."""
    (tmp_path / "test_mine.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_mine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_page_shows_examples() -> None:
    """Damage: the tests above find nothing to try, and pass."""
    assert len(SETTINGS) >= 5
    assert len(SUITES) == 1
