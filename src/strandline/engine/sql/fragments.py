"""Fragments of SQL text: named parts of a query, rows repeated as often as they count, and errors of failed rows.

A part becomes a subquery or a common table expression (`Text`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Failing
from strandline.algebra.scalar import HasValue, text
from strandline.algebra.schema import DIFF, RESERVED, quote

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


BLOCK: Final = 65_536
BLOCKS: Final = f"explode(sequence(0L, (greatest({DIFF}, 1L) - 1L) div {BLOCK}L))"
# A NULL count (a group without members) stays NULL: `least` would skip it.
_LEFT: Final = f"({DIFF} - {BLOCK}L * __block)"
_TIMES: Final = f"CAST(IF({_LEFT} > {BLOCK}L, {BLOCK}L, {_LEFT}) AS INT)"
COPIES: Final = f"explode(array_repeat(true, {_TIMES}))"


def lateral(*, outer: bool = False) -> str:
    """Return lateral views that give each row as often as its ``__diff`` says: a column ``__copy``.

    ``outer``: a row without a count is given once, its ``__copy`` NULL.
    """
    view = "LATERAL VIEW OUTER" if outer else "LATERAL VIEW"
    return f"{view} {BLOCKS} b AS __block {view} {COPIES} c AS __copy"


def of_rows(columns: str) -> str:
    """Return lateral views that give the fields of a column ``__row`` as ``columns``, as often as ``__diff`` says.

    A row's count is a number for as long as possible; only what plain Spark has to look at (a query's multiset, the
    members of a group) needs copies.  One array of that many elements would have to fit in memory, and could not be
    longer than an int.  So copies are given block by block, `BLOCK` at a time.
    """
    return f"LATERAL VIEW {BLOCKS} b AS __block LATERAL VIEW inline(array_repeat(__row, {_TIMES})) c AS {columns}"


def error(node: Failing) -> str:
    """Return the error of a row that fails: JSON that says where, which expressions, and what the row is.

    Conditions of `algebra.scalar.HasValue` say which rows fail.
    """
    said = zip(node.expressions, node.texts, strict=True)
    texts = [f"IF({text(HasValue(this=each.tree.copy()))}, NULL, {literal(words)})" for each, words in said]
    row = listed(f"{quote(own)} AS {quote(shown)}" for shown, own in node.row)
    parts = [
        f"{literal(node.where)} AS `collection`",
        f"concat_ws('; ', {listed(texts)}) AS `expression`",
        f"struct({row}) AS `row`",
    ]
    return f"to_json(struct({listed(parts)}), map('ignoreNullFields', 'false'))"


def literal(words: str) -> str:
    r"""Return ``words`` as a Spark SQL string literal.

    >>> print(literal("it's a \\ b"))
    'it\'s a \\ b'
    """
    return text(exp.Literal.string(words))
