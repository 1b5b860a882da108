"""The error of a row that an expression fails on, as SQL text.

Which rows these are is said by conditions of `algebra.scalar.HasValue`.
"""

from __future__ import annotations

from sqlglot import exp

from strandline.algebra.nodes import Failing
from strandline.algebra.scalar import HasValue, text
from strandline.algebra.schema import quote
from strandline.engine.sql.text import listed


def error(node: Failing) -> str:
    """Return the error of a row that fails: JSON that says where, which expressions, and what the row is."""
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
