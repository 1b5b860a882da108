"""The site of docs/ can be built: every page is in its navigation, and every link and anchor leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FETCHED: Final = re.compile(
    r"<(?:script|img|iframe)[^>]*src=\"(?:https?:)?//|<link[^>]*rel=\"(?:stylesheet|preconnect)\"[^>]*href=\"(?:https?:)?//"
)


def build(site: Path, docs: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Build the site below ``site``."""
    settings = (ROOT / "mkdocs.yml").read_text()
    if docs is not None:
        settings = settings.replace("docs_dir: docs", f"docs_dir: {docs}")
    settings = settings.replace("tools/site_links.py", str(ROOT / "tools" / "site_links.py"))
    path = site.parent / "mkdocs.yml"
    path.write_text(settings.replace("docs_dir: docs", f"docs_dir: {ROOT / 'docs'}"))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(path), "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    """Damage: a reader follows a link into nothing, cannot find a page, or is reported to a server of others."""
    built = build(tmp_path / "site")
    assert built.returncode == 0, built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= 35
    assert [page.name for page in pages if FETCHED.search(page.read_text())] == []


def test_a_link_into_nothing_stops_the_build(tmp_path: Path) -> None:
    """Damage: the test above would pass over any link."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for path in (ROOT / "docs").rglob("*.md"):
        copied = docs / path.relative_to(ROOT / "docs")
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(path.read_text())
    (docs / "index.md").write_text("[gone](tutorial.md#no-such-anchor) and [gone](no-such-page.md)\n")
    built = build(tmp_path / "site", docs)
    assert built.returncode != 0
    assert "no-such-anchor" in built.stderr
    assert "no-such-page" in built.stderr
