"""Does an expression have a value?  SQL text that answers this, and never fails.

Spark has no general way to try an expression.  But its `try_to_binary` evaluates the *whole* of its argument under a
guard: whatever the argument throws, the result is NULL.  So an argument that is never NULL and always converts, and
that needs the value of the expression, makes the result NULL iff the expression has no value.  A hash is such an
argument; it is taken of the value as text, because not every type can be hashed.

Spark evaluates an expression that occurs twice before either of them, and so outside the guard; but not one that only
a branch needs, hence the IF.  Its condition is always true; Spark, which takes it for not deterministic, moves nothing
from above below a filter with it, so that what passes is what everything above is evaluated on, and no more.

Held by test for every way in which Spark evaluates (generated code or not, common subexpressions shared or not).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.algebra.nodes import Failing
from strandline.algebra.scalar import Scalar, text
from strandline.algebra.schema import quote
from strandline.engine.sql.text import listed


def passes(expressions: Sequence[Scalar]) -> str:
    """Return a condition that is true if each of ``expressions`` has a value, else false.

    >>> from strandline.algebra.scalar import scalar
    >>> passes([scalar("1 / a")])
    "(try_to_binary(IF(spark_partition_id() >= 0, hex(xxhash64(CAST((1 / a) AS STRING))), ''), 'utf-8') IS NOT NULL)"
    """
    values = listed(f"CAST(({each.sql}) AS STRING)" for each in expressions)
    return f"(try_to_binary(IF(spark_partition_id() >= 0, hex(xxhash64({values})), ''), 'utf-8') IS NOT NULL)"


def error(node: Failing) -> str:
    """Return the error of a row that fails: JSON that says where, which expressions, and what the row is."""
    texts = [f"IF({passes([each])}, NULL, {literal(each.sql)})" for each in node.expressions]
    row = listed(quote(name) for name in node.input.names)
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
