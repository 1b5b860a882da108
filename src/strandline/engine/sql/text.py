"""SQL text under construction: common table expressions with names of their own."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.algebra.schema import RESERVED


def listed(items: Iterable[str]) -> str:
    """Return ``items`` with commas between.

    >>> listed(["a", "b"])
    'a, b'
    """
    return ", ".join(items)


class Text:
    """The common table expressions of one query, each defined before it is used.

    Their names are reserved ones, so that none hides a relation of the author's.

    >>> text = Text()
    >>> print(text.query("SELECT * FROM " + text.define("get", "SELECT 1")))
    WITH __get_1 AS (
      SELECT 1
    )
    SELECT * FROM __get_1
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def define(self, label: str, body: str) -> str:
        """Return the name of a table expression with this body: a new one, or that of an equal one defined before."""
        if body in self._names:
            return self._names[body]
        name = f"{RESERVED}{label}_{len(self._names) + 1}"
        self._names[body] = name
        return name

    def query(self, body: str) -> str:
        """Return the whole query whose main SELECT is ``body``."""
        if not self._names:
            return body
        defined = ",\n".join(f"{name} AS (\n{_indented(text)}\n)" for text, name in self._names.items())
        return f"WITH {defined}\n{body}"


def _indented(text: str) -> str:
    # A line break inside a string literal must stay as it is: such a text is not indented at all.
    return text if "'" in text and "\n" in text else "\n".join("  " + line for line in text.split("\n"))
