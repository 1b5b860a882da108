"""A hook of mkdocs: what a page links to outside docs/ is not part of the site, so its path is shown as a hint."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
LINK: Final = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the text of a page with such links as hints."""
    place = PurePosixPath("docs") / PurePosixPath(page.file.src_uri).parent

    def shown(found: re.Match[str]) -> str:
        target = (ROOT / place / found[2]).resolve().relative_to(ROOT)
        hint = f"{target}{(found[3] or '').replace('#', ', ')}"
        return found[0] if target.parts[0] == "docs" else f'<abbr title="{hint}">{found[1]}</abbr>'

    return LINK.sub(shown, markdown)
