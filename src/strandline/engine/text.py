"""SQL text under construction: common table expressions with names of their own."""

from __future__ import annotations

from collections.abc import Iterable


def listed(items: Iterable[str]) -> str:
    """Return ``items`` with commas between.

    >>> listed(["a", "b"])
    'a, b'
    """
    return ", ".join(items)


class Text:
    """The common table expressions of one query, each defined before it is used.

    >>> text = Text(taken=frozenset({"get_1"}))
    >>> print(text.query("SELECT * FROM " + text.define("get", "SELECT 1")))
    WITH get_2 AS (
      SELECT 1
    )
    SELECT * FROM get_2
    """

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = taken
        self._names: dict[str, str] = {}
        self._count = 0

    def define(self, label: str, body: str) -> str:
        """Return the name of a table expression with this body: a new one, or that of an equal one defined before."""
        if body in self._names:
            return self._names[body]
        while True:
            self._count += 1
            name = f"{label}_{self._count}"
            if name not in self._taken:
                break
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
