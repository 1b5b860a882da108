"""Plans as Spark SQL text that a person can read: the one place where a plan becomes text.

`render` turns a node into one SELECT over temporary views; the result has the node's columns, then ``__time`` and
``__diff``, and is not consolidated.  A node becomes a subquery; where it is read more than once, a common table
expression named after what it does.  The rules for groups are in `grouping`.  ANSI mode is assumed.

Cost: each step's SQL is parsed and planned by Spark each time, so the text uses no window, DISTINCT or shuffle that
the case at hand (one time only, nothing stored yet, updates known to be few) does not need.

See `algebra.nodes` for what each node means.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.algebra.careful import has_doubtful_condition, may_fail
from strandline.algebra.nodes import (
    Accumulate,
    Constant,
    Failing,
    Filter,
    Get,
    Join,
    Negate,
    Newest,
    Node,
    Opaque,
    Project,
    Reduce,
    Regroup,
    Replay,
    Restrict,
    UnionAll,
)
from strandline.algebra.scalar import Scalar, conjunction, is_steady
from strandline.algebra.scalar import text as written
from strandline.algebra.schema import DIFF, ERROR, TIME, quote
from strandline.engine.sql import fragments, grouping
from strandline.engine.sql.fragments import Text, listed


def render(node: Node, frame_names: Mapping[str, str], *, single: bool = False) -> str:
    """Return ``node`` as one SELECT; ``frame_names`` maps the frames of its `Get` leaves to temporary views.

    ``single``: each of these has one partition, and so shall all that is made of them.

    >>> from strandline.algebra.scalar import scalar
    >>> print(render(Filter(Get("t:delta", (("a", "x"),)), scalar("`a` > 1")), {"t:delta": "v"}))
    SELECT * FROM (
    SELECT `x` AS `a`, __time, __diff FROM `v`
    ) WHERE `a` > 1
    """
    text = Text(single=single)
    return text.query(_body(node, frame_names, text))


def _body(node: Node, frames: Mapping[str, str], text: Text) -> str:
    """Return the SELECT of ``node``; the nodes below are defined in ``text``."""

    def below(child: Node) -> str:
        return text.define(type(child).__name__.lower(), _body(child, frames, text))

    match node:
        case Get(frame=frame):
            columns = [quote(own) if own == out else f"{quote(own)} AS {quote(out)}" for out, own in node.columns]
            return f"SELECT {listed([*columns, TIME, DIFF])} FROM {quote(frames[frame])}"
        case Constant():
            return _constant(node)
        case Project():
            columns = [_as(value.sql, name) for name, value in node.columns]
            return f"SELECT {listed([*columns, TIME, DIFF])} FROM {below(node.input)}"
        case Filter():
            passed = f"SELECT * FROM {below(node.input)} WHERE {node.predicate.sql}"
            return (
                _apart(listed([*map(quote, node.names), TIME, DIFF]), passed) if is_steady(node.predicate) else passed
            )
        case Join():
            return _join(node, [below(child) for child in node.inputs], text)
        case UnionAll():
            return text.union(f"SELECT * FROM {below(child)}" for child in node.inputs)
        case Negate():
            return f"SELECT {listed([*map(quote, node.names), TIME, f'-{DIFF} AS {DIFF}'])} FROM {below(node.input)}"
        case Failing():
            values = [f"{fragments.error(node)} AS {ERROR}", *map(quote, node.kept), TIME, DIFF]
            return f"SELECT {listed(values)} FROM {below(node.input)}"
        case Accumulate():
            prior = None if _empty(node.prior) else below(node.prior)
            return grouping.accumulate(node, below(node.delta), prior, text)
        case Regroup():
            delta = below(node.delta)
            if _empty(node.prior) and node.delta == node.new and len(node.times) == 1:
                return grouping.group(node.keys, node.aggregates, delta, str(node.times[0]), text)
            prior = None if _empty(node.prior) else below(node.prior)
            return grouping.regroup(node, delta, delta if node.delta == node.new else below(node.new), prior, text)
        case Reduce():
            latest = f"(SELECT COALESCE(MAX({TIME}), 0) FROM {(source := below(node.input))})"
            return grouping.group(node.keys, node.aggregates, source, latest, text)
        case Opaque():
            return _opaque(node, [below(child) for child in node.inputs], text)
        case Replay():
            prior = None if _empty(node.prior) else below(node.prior)
            return _replay(node, [below(child) for child in node.inputs], prior, text)
        case Restrict():
            hint = text.hint(small="k" if node.small else None, keyed=bool(node.columns))
            if not node.columns:
                some = f"(SELECT COUNT(*) AS n FROM {below(node.keys)} HAVING COUNT(*) > 0)"
                return f"SELECT {hint}r.* FROM {below(node.input)} r JOIN {some} k ON true"
            pairs = zip(node.columns, node.keys.names, strict=True)
            same = " AND ".join(f"r.{quote(own)} <=> k.{quote(key)}" for own, key in pairs)
            keys = below(node.keys)
            if not node.small:  # many changes may have few keys
                keys = f"(SELECT DISTINCT {listed(map(quote, node.keys.names))} FROM {keys})"
            return f"SELECT {hint}r.* FROM {below(node.input)} r LEFT SEMI JOIN {keys} k ON {same}"
        case Newest():
            held, errors = (None if _empty(each) else below(each) for each in (node.held, node.errors))
            return grouping.newest(node, below(node.records), held, errors, text)


def _empty(node: Node) -> bool:
    return isinstance(node, Constant) and not node.rows


def _as(sql: str, name: str) -> str:
    return sql if sql == quote(name) else f"{sql} AS {quote(name)}"


def _constant(node: Constant) -> str:
    names = [*node.names, TIME, DIFF]
    if not node.rows:
        return f"SELECT {listed(f'NULL AS {quote(name)}' for name in names)} WHERE false"
    values = [[*(value.sql for value in row), f"{node.time}L", "1L"] for row in node.rows]
    first = [_as(sql, name) for sql, name in zip(values[0], names, strict=True)]
    return "\nUNION ALL\n".join(f"SELECT {listed(row)}" for row in (first, *values[1:]))


def _join(node: Join, sources: list[str], text: Text) -> str:
    """Join the inputs one after another, from the small one on; what is joined so far is then small, and broadcast."""
    left = list(range(len(sources)))
    waiting = list(node.conditions)
    start = node.small or 0
    left.remove(start)
    joined, names, body = sources[start], frozenset(node.inputs[start].names), ""
    while left:
        position = _next(left, node, names, waiting)
        left.remove(position)
        names |= frozenset(node.inputs[position].names)
        on = [conjunct for conjunct in waiting if conjunct.columns <= names]
        waiting = [conjunct for conjunct in waiting if conjunct not in on]
        keyed = any(equal.condition in on for equal in node.equal)
        hint = text.hint(small="l" if node.small is not None else None, keyed=keyed)
        columns = map(quote, node.names if not left else sorted(names))
        times = [f"GREATEST(l.{TIME}, r.{TIME}) AS {TIME}", f"l.{DIFF} * r.{DIFF} AS {DIFF}"]
        condition = written(conjunction(conjunct.tree for conjunct in on)) if on else "true"
        body = f"SELECT {hint}{listed([*columns, *times])}\nFROM {joined} l JOIN {sources[position]} r ON {condition}"
        joined = text.define("join", body) if left else joined
    assert not waiting, f"{waiting} name columns that no input of the join has"
    return body


def _next(left: list[int], node: Join, names: frozenset[str], waiting: list[Scalar]) -> int:
    """Return the first input that equal keys connect with what is joined; else any condition; else the first."""
    equal = [each.condition for each in node.equal]
    for conditions in ([c for c in waiting if c in equal], waiting):
        for position in left:
            own = frozenset(node.inputs[position].names)
            if any(c.columns & own and c.columns & names and c.columns <= own | names for c in conditions):
                return position
    return left[0]


def _apart(columns: str, rows: str) -> str:
    """Return ``rows`` with a barrier above: what is above is evaluated on these alone; see `_multiset`."""
    held = f"SELECT struct({columns}) AS __row FROM ({rows})"
    return f"SELECT {columns} FROM ({held}) LATERAL VIEW inline(array(__row)) r AS {columns}"


def _multiset(below: Node, source: str, condition: str, *, asked: bool) -> str:
    """Return the plain rows that the updates of ``source`` sum up to, each as often as its count.

    An expression that may fail is evaluated for all of them, whatever the query does with them; and a condition of the
    query that may fail (``asked``) for rows alone, not for updates, and not by the statistics of a part.  For there the
    columns are what a generator makes of each row, and Spark moves no condition on such columns below the generator.
    So it depends neither on the query's plan nor on where its rows are stored whether a row fails.

    Rejected: a condition that Spark takes for not deterministic.  It takes each subquery that reads such rows for that
    too, and refuses some: in the ON of a join, in an aggregate, beside GROUP BY ALL.
    """
    columns = listed(map(quote, below.names))
    grouped = f"GROUP BY {columns}" if columns else ""
    counted = (
        f"SELECT {columns}{', ' if columns else ''}SUM({DIFF}) AS {DIFF} FROM {source} WHERE {condition} {grouped}"
    )
    if columns and (asked or may_fail(below)):
        rows = f"SELECT struct({columns}) AS __row, {DIFF} FROM ({counted})"
        return f"SELECT {columns} FROM ({rows}) {fragments.of_rows(columns)}"
    return f"SELECT {columns or '1 AS __one'} FROM ({counted}) {fragments.lateral()}"


def _query(node: Opaque | Replay, sources: list[str], condition: str) -> str:
    """Return the opaque query over what its inputs are under ``condition``; its relations are defined around it."""
    asked = has_doubtful_condition(node.sql)
    relations = [
        f"{quote(alias)} AS ({_multiset(below, source, condition, asked=asked)})"
        for alias, below, source in zip(node.aliases, node.inputs, sources, strict=True)
    ]
    columns = listed(map(quote, node.names))
    defined = "WITH " + ",\n".join(relations) + "\n" if relations else ""
    return f"{defined}SELECT {columns} FROM (\n{node.sql}\n)"


def _opaque(node: Opaque, sources: list[str], text: Text) -> str:
    latest = listed(f"COALESCE((SELECT MAX({TIME}) FROM {source}), 0)" for source in sources)
    time = f"GREATEST({latest})" if len(sources) > 1 else latest or "0L"
    result = text.define("result", _query(node, sources, "true"))
    return f"SELECT *, {time} AS {TIME}, 1L AS {DIFF} FROM {result}"


def _replay(node: Replay, sources: list[str], prior: str | None, text: Text) -> str:
    columns = listed(map(quote, node.names))
    terms = []
    if prior is not None:
        terms.append(f"SELECT {columns}, {node.times[0]}L AS {TIME}, -{DIFF} AS {DIFF} FROM {prior}")
    for time, until in zip(node.times, (*node.times[1:], None), strict=True):
        result = text.define(f"result_at_{time}", _query(node, sources, f"{TIME} <= {time}"))
        if until is None:
            terms.append(f"SELECT {columns}, {time}L AS {TIME}, 1L AS {DIFF} FROM {result}")
        else:
            terms.append(
                f"SELECT {columns}, c.{TIME}, c.{DIFF} FROM {result}"
                f" CROSS JOIN (VALUES ({time}L, 1L), ({until}L, -1L)) c ({TIME}, {DIFF})"
            )
    return text.union(terms)
