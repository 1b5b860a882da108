"""Paths in URLs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from strandline.errors import ConfigError


def path_of(url: str) -> Path:
    """Return the path of a URL that says nothing but a path.

    >>> path_of("file:///data/a%20b")
    PosixPath('/data/a b')

    Raises `ConfigError`: it says more, which would be left out silently.
    """
    place = urlsplit(url)
    if place.netloc not in {"", "localhost"} or "?" in url or "#" in url:
        raise ConfigError(
            f"{place.scheme}:// takes an absolute path behind a third slash, and no host: "
            f"{place.scheme}:///data/strand; in the path, write ? as %3F and # as %23"
        )
    return Path(unquote(place.path))
