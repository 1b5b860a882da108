"""SQL text under construction: parts with names of their own, which become subqueries or common table expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from strandline.algebra.schema import RESERVED

_MAIN: Final = ""


def listed(items: Iterable[str]) -> str:
    """Return ``items`` with commas between.

    >>> listed(["a", "b"])
    'a, b'
    """
    return ", ".join(items)


class Text:
    """The parts of one query, each defined before it is used.

    What is used once stands where it is used, and the rest in front as common table expressions: Spark's analyser
    copies and renumbers the whole of such an expression wherever it is named, and so again for those that it names.
    Their names are reserved ones, so that none hides a relation of the author's.  No line is indented, since a line
    break may be part of a literal or of a name.

    >>> text = Text()
    >>> once = text.define("get", "SELECT 1")
    >>> twice = text.define("filter", f"SELECT * FROM {once} WHERE true")
    >>> print(text.query(f"SELECT * FROM {twice} l JOIN {twice} r"))
    WITH __filter_2 AS (
    SELECT * FROM (
    SELECT 1
    ) WHERE true
    )
    SELECT * FROM __filter_2 l JOIN __filter_2 r
    """

    def __init__(self, *, single: bool = False) -> None:
        """``single``: for a plan of one partition throughout, in which Spark may neither shuffle nor broadcast."""
        self.single = single
        self._names: dict[str, str] = {}

    def hint(self, *, small: str | None, keyed: bool = True) -> str:
        """Return the hint of a join: keep the relation ``small`` in memory.  ``keyed``: it has equal keys.

        Spark does not say of a join without keys how many partitions it is.
        """
        hints = [] if small is None else [f"{'SHUFFLE_HASH' if self.single else 'BROADCAST'}({small})"]
        hints += ["COALESCE(1)"] if self.single and not keyed else []
        return f"/*+ {', '.join(hints)} */ " if hints else ""

    def union(self, terms: Iterable[str]) -> str:
        """Return the UNION ALL of these SELECTs.  Spark knows of it that it is one partition only by a hint."""
        united = "\nUNION ALL\n".join(terms)
        return (
            f"SELECT /*+ COALESCE(1) */ * FROM (\n{united}\n)" if self.single and "\nUNION ALL\n" in united else united
        )

    def define(self, label: str, body: str) -> str:
        """Return the name of a table expression with this body: a new one, or that of an equal one defined before."""
        if body in self._names:
            return self._names[body]
        name = f"{RESERVED}{label}_{len(self._names) + 1}"
        self._names[body] = name
        return name

    def query(self, body: str) -> str:
        """Return the whole query whose main SELECT is ``body``."""
        texts = {name: text for text, name in self._names.items()} | {_MAIN: body}
        for name in self._names.values():
            word = re.compile(rf"\b{name}\b")
            users = [user for user, text in texts.items() for _ in word.findall(text)]
            if len(users) == 1:  # what looks like a use, in a literal of the author's, counts too
                text = f"(\n{texts.pop(name)}\n)"
                texts[users[0]] = text.join(word.split(texts[users[0]]))
        main = texts.pop(_MAIN)
        defined = ",\n".join(f"{name} AS (\n{text}\n)" for name, text in texts.items())
        return f"WITH {defined}\n{main}" if defined else main
