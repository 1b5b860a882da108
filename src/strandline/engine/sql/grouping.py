"""SQL text of the two rules for groups: running sums (`accumulate`) and touched groups (`regroup`).

Keys are compared with ``<=>``, so NULL is a key like any other.  A row that is there n times counts n times: the
updates of a group are first summed up by what its aggregates look at, then repeated.  Float sums and averages fold
the sorted values, so that they do not depend on how rows were batched or partitioned (law D).

See `compute/rules/accumulate.py`, `compute/rules/regroup.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Accumulate, Accumulator, Aggregate, Regroup
from strandline.algebra.scalar import Scalar, binary, cast, column
from strandline.algebra.scalar import text as written
from strandline.algebra.schema import DIFF, TIME, quote
from strandline.engine.sql import copies
from strandline.engine.sql.text import Text, listed

_SIGNS: Final = "LATERAL VIEW explode(array(1L, -1L)) s AS __sign"
"""A lateral view that gives each row twice: what comes, and what goes."""
_MULTIPLIER: Final = "decimal(10,0)"

Keys = Sequence[tuple[str, Scalar]]


def accumulate(node: Accumulate, delta: str, prior: str | None, text: Text) -> str:
    """Running sums: what was stored of the touched groups, and what each time of the window adds."""
    keys, sums, once = [quote(name) for name, _ in node.keys], node.accumulators, len(node.times) == 1
    computed = [f"{value.sql} AS {quote(name)}" for name, value in node.keys]
    added = [f"{_times_diff(a)} AS {quote(a.name)}" for a in sums]
    moved = f"SELECT {listed([*computed, TIME, *added])} FROM {delta}"
    if not once:
        moved = _summed(keys, sums, moved)
    story = [f"SELECT * FROM {text.define('moved', moved)}"]
    if prior is not None:
        before = [f"{_signed(a)} AS {quote(a.name)}" for a in sums]
        touched = f"SELECT {listed(computed) or '1 AS one'} FROM {delta}"
        stored = f"{listed([*keys, f'-1L AS {TIME}', *before])}\nFROM {prior} p"
        if text.single:  # it was looked up by the touched keys; what it holds besides is at no time of the window
            story.append(f"SELECT {stored}")
        else:
            only = f"LEFT SEMI JOIN ({touched}) m ON {_same(node.keys, 'p', 'm')}"
            story.append(f"SELECT {_hint(node, 'm', text)}{stored} {only}")
    if node.start is not None:
        story.append(f"SELECT {listed([f'{node.start}L', *(f'CAST(0 AS {a.type})' for a in sums)])}")
    summed = text.define("story", text.union(story))
    steps = text.define("steps", (_steps_once if once else _steps)(keys, sums, summed))
    shown = [f"IF(__sign = 1, {quote(a.name)}, {_before(a)}) AS {quote(a.name)}" for a in sums]
    rows = next(a for a in sums if a.name == node.rows)
    there = f"IF(__sign = 1, {quote(rows.name)}, {_before(rows)}) <> 0" if keys else "(__sign = 1 OR __earlier > 0)"
    columns = listed([*keys, *shown, TIME, f"__sign AS {DIFF}"])
    return f"SELECT {columns}\nFROM {steps} {_SIGNS}\nWHERE {TIME} >= 0 AND {there}"


def _summed(keys: list[str], sums: Sequence[Accumulator], source: str) -> str:
    """Add up what each group gains at each time."""
    gained = [f"CAST(SUM({quote(a.name)}) AS {a.type}) AS {quote(a.name)}" for a in sums]
    return f"SELECT {listed([*keys, TIME, *gained])}\nFROM ({source})\nGROUP BY {listed([*keys, TIME])}"


def _steps_once(keys: list[str], sums: Sequence[Accumulator], story: str) -> str:
    """All updates are at one time: one sum before, one after."""
    after = [f"CAST(SUM({quote(a.name)}) AS {a.type}) AS {quote(a.name)}" for a in sums]
    stored = f"FILTER (WHERE {TIME} < 0)"
    before = [f"CAST(COALESCE(SUM({quote(a.name)}) {stored}, 0) AS {a.type}) AS {_before(a)}" for a in sums]
    earlier = [] if keys else [f"COUNT(*) {stored} AS __earlier"]
    grouped = f" GROUP BY {listed(keys)}" if keys else ""
    return f"SELECT {listed([*keys, f'MAX({TIME}) AS {TIME}', *after, *before, *earlier])}\nFROM {story}{grouped}"


def _steps(keys: list[str], sums: Sequence[Accumulator], story: str) -> str:
    """Sums before and after each time of each group.

    Two times of one group may be one row each, or (stored rows not yet consolidated, a global start) several: hence
    RANGE.
    """
    partition = f"PARTITION BY {listed(keys)} " if keys else ""
    upto = f"({partition}ORDER BY {TIME} RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    until = f"({partition}ORDER BY {TIME} RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    after = [f"SUM({quote(a.name)}) OVER {upto} AS {quote(a.name)}" for a in sums]
    before = [f"COALESCE(SUM({quote(a.name)}) OVER {until}, 0) AS {_before(a)}" for a in sums]
    earlier = [] if keys else [f"COUNT(*) OVER {until} AS __earlier"]
    body = f"SELECT {listed([*keys, TIME, *after, *before, *earlier])}\nFROM {story}"
    return body if keys else body.replace("SELECT ", "SELECT DISTINCT ", 1)


def _before(accumulator: Accumulator) -> str:
    return quote(f"__{accumulator.name}")


def _times_diff(accumulator: Accumulator) -> str:
    """Return contribution × diff; `compute/rules/accumulate.py` sees to it that a decimal is narrow enough for that."""
    diff: exp.Expr = column(DIFF)
    if accumulator.type.startswith("decimal"):
        diff = cast(diff, _MULTIPLIER)
    return written(binary(exp.Mul, accumulator.contribution.tree, diff))


def _signed(accumulator: Accumulator) -> str:
    """Return stored sum × diff.

    One row a group is stored, so that diffs are ±1; of a wide decimal Spark computes no other product without loss.
    """
    name = f"p.{quote(accumulator.name)}"
    if accumulator.type.startswith("decimal"):
        product = f"CAST({name} * CAST(p.{DIFF} AS {_MULTIPLIER}) AS {accumulator.type})"
        return f"CASE p.{DIFF} WHEN 1 THEN {name} WHEN -1 THEN CAST(-{name} AS {accumulator.type}) ELSE {product} END"
    return f"{name} * p.{DIFF}"


def _hint(node: Accumulate | Regroup, relation: str, text: Text) -> str:
    return text.hint(small=relation if node.small else None)


def _same(keys: Keys, left: str, right: str) -> str:
    return " AND ".join(f"{left}.{quote(name)} <=> {right}.{quote(name)}" for name, _ in keys) or "true"


def group(keys: Keys, aggregates: Sequence[Aggregate], source: str, time: str, text: Text) -> str:
    """All groups of ``source``, as of the end: the plain GROUP BY, over updates."""
    names = [quote(name) for name, _ in keys]
    members = text.define("members", _members(keys, aggregates, source, (), ""))
    body = _grouped(names, aggregates, members, "", text)
    return f"SELECT *, CAST({time} AS BIGINT) AS {TIME}, 1L AS {DIFF} FROM {text.define('groups', body)}"


def regroup(node: Regroup, delta: str, new: str, prior: str | None, text: Text) -> str:
    """Each touched group at each time it is touched; what it was before is withdrawn then."""
    keys, names = node.keys, [quote(name) for name, _ in node.keys]
    columns = [quote(name) for name in node.names]
    computed = listed(f"{value.sql} AS {quote(name)}" for name, value in keys)
    if len(node.times) == 1 and (keys or node.start in (None, *node.times)):
        time = f"{node.times[0]}L"
        distinct = "" if node.small else "DISTINCT "  # many changes may be of few groups
        touched = text.define("touched", f"SELECT {distinct}{computed} FROM {delta}") if keys else ""
        hint = _hint(node, "d", text) if keys else ""
        members = text.define("members", _members(keys, node.aggregates, new, (), touched, hint))
        groups = text.define("groups", _grouped(names, node.aggregates, members, "", text))
        terms = [f"SELECT {listed(columns)}, {time} AS {TIME}, 1L AS {DIFF} FROM {groups}"]
        since, kind = time, "LEFT SEMI JOIN"
    else:
        source = f"SELECT {computed}{', ' if keys else ''}{TIME} FROM {delta}"
        if node.start is not None:
            source += f" UNION ALL SELECT {node.start}L"
        gathered = f"sort_array(collect_set({TIME})) AS __times"
        grouped = f" GROUP BY {listed(names)}" if keys else ""
        touched = text.define("touched", f"SELECT {listed([*names, gathered])} FROM ({source}){grouped}")
        moments = text.define(
            "moments",
            f"SELECT {listed([*names, '__at', 'get(__times, __n + 1) AS __until'])}\n"
            f"FROM {touched} LATERAL VIEW posexplode(__times) t AS __n, __at",
        )
        own = ("__at", "__until")
        members = text.define("members", _members(keys, node.aggregates, new, own, moments, _hint(node, "d", text)))
        groups = text.define(
            "groups", _grouped([*names, *own], node.aggregates, members, "" if keys else moments, text)
        )
        lasting = f"SELECT {listed(columns)}, IF(__sign = 1, __at, __until) AS {TIME}, __sign AS {DIFF}"
        terms = [f"{lasting}\nFROM {groups} {_SIGNS}\nWHERE __sign = 1 OR __until IS NOT NULL"]
        since, kind = "get(d.__times, 0)", "JOIN"
    if prior is not None:
        stored = listed(f"p.{name}" for name in columns)
        there = "" if names else " AND size(d.__times) > 0"
        joined = f" {kind} {touched} d ON {_same(keys, 'p', 'd')}{there}" if touched else ""
        hint = _hint(node, "d", text) if touched else ""
        terms.append(f"SELECT {hint}{stored}, {since} AS {TIME}, -p.{DIFF} AS {DIFF}\nFROM {prior} p{joined}")
    return text.union(terms)


def _arguments(aggregates: Sequence[Aggregate]) -> dict[Scalar, str]:
    """Return the distinct arguments of ``aggregates`` and the columns that carry them."""
    found = dict.fromkeys(a.argument for a in aggregates if a.argument is not None)
    return {argument: f"__a{n}" for n, argument in enumerate(found)}


def _members(
    keys: Keys, aggregates: Sequence[Aggregate], source: str, own: Sequence[str], touched: str, hint: str = ""
) -> str:
    """Sum up the updates of each group by the arguments of its aggregates; ``__diff``: the count of such a row.

    With ``touched``, of these groups only; it may carry columns ``own``: then up to the moment ``__at`` of each.
    """
    arguments = _arguments(aggregates)
    columns = [f"{value.sql} AS {quote(name)}" for name, value in keys]
    columns += [f"{value.sql} AS {name}" for value, name in arguments.items()]
    rows = f"SELECT {listed([*columns, TIME, DIFF])} FROM {source}"
    names = [quote(name) for name, _ in keys] + list(arguments.values())
    joined = ""
    if touched:
        upto = " AND n.__time <= d.__at" if own else ""
        joined = f" {'' if own else 'LEFT SEMI '}JOIN {touched} d ON {_same(keys, 'n', 'd')}{upto}"
    selected = [*(f"n.{name}" for name in names), *own]
    grouped = f"\nGROUP BY {listed(selected)}" if selected else ""
    return (
        f"SELECT {hint}{listed([*selected, f'SUM(n.{DIFF}) AS {DIFF}'])}\n"
        f"FROM ({rows}) n{joined}{grouped}\nHAVING SUM(n.{DIFF}) <> 0"
    )


def _grouped(names: list[str], aggregates: Sequence[Aggregate], members: str, moments: str, text: Text) -> str:
    """Aggregate ``members`` by ``names``; with ``moments``, each of them has a row even without members."""
    arguments = _arguments(aggregates)
    outer = False
    if moments:
        columns = [*(f"m.{name}" for name in names), *(f"b.{name}" for name in arguments.values()), f"b.{DIFF}"]
        members = text.define(
            "held", f"SELECT {listed(columns)} FROM {moments} m LEFT JOIN {members} b ON m.__at = b.__at"
        )
        outer = True
    repeated = f" {copies.lateral(outer=outer)}" if any(map(_repeats, aggregates)) else ""
    values = [f"{_aggregate(a, arguments)} AS {quote(a.name)}" for a in aggregates]
    if repeated:  # each copy counts once
        members = text.define(
            "copies", f"SELECT * EXCEPT ({DIFF}), IF(__copy, 1L, NULL) AS {DIFF} FROM {members}{repeated}"
        )
    grouped = f"\nGROUP BY {listed(names)}" if names else ""
    return f"SELECT {listed([*names, *values])}\nFROM {members}{grouped}"


def _repeats(aggregate: Aggregate) -> bool:
    """Return whether ``aggregate`` must see each copy of a row: Spark has no exact product with a count."""
    return (
        aggregate.function in ("sum", "avg")
        and not aggregate.distinct
        and not _folded(aggregate)
        and aggregate.argument_type not in (*_SMALL, _WIDE)
    )


def _aggregate(aggregate: Aggregate, arguments: dict[Scalar, str]) -> str:
    """Return the aggregate over members, each of which counts ``__diff`` times."""
    if aggregate.argument is None:
        return f"COALESCE(SUM({DIFF}), 0L)"
    argument = arguments[aggregate.argument]
    if _folded(aggregate):
        return _fold(aggregate, argument, once=len(arguments) == 1)
    if aggregate.function in ("sum", "avg") and aggregate.argument_type == _WIDE:
        return _exact(aggregate, argument)
    if aggregate.distinct or aggregate.function in ("min", "max"):
        distinct = "DISTINCT " if aggregate.distinct else ""
        return f"{aggregate.function.upper()}({distinct}{argument})"
    if aggregate.function == "count":
        return _count(argument)
    if _repeats(aggregate):
        return f"{aggregate.function.upper()}({argument})"
    return _of_sum(aggregate, f"SUM({argument} * {DIFF})", _count(argument))


def _of_sum(aggregate: Aggregate, total: str, count: str) -> str:
    """Return a sum or average of whole numbers, by their exact sum and how many there are."""
    return total if aggregate.function == "sum" else f"CAST({total} AS DOUBLE) / NULLIF({count}, 0L)"


def _exact(aggregate: Aggregate, argument: str) -> str:
    """Return a sum or average of 64-bit integers by an exact sum, as the rule "Accumulate" keeps it.

    Spark adds them up in 64 bits, which may overflow on the way in one order of rows and not in another, or as doubles.
    """
    value = f"CAST({argument} AS DECIMAL(20,0))"
    if aggregate.distinct:
        total, count = f"SUM(DISTINCT {value})", f"COUNT(DISTINCT {argument})"
    else:
        total, count = f"SUM({value} * CAST({DIFF} AS DECIMAL(20,0)))", _count(argument)
    return f"CAST({_of_sum(aggregate, total, count)} AS {aggregate.type})"


def _count(argument: str) -> str:
    return f"COALESCE(SUM(IF({argument} IS NULL, 0L, {DIFF})), 0L)"


def _folded(aggregate: Aggregate) -> bool:
    return (
        aggregate.function in ("sum", "avg")
        and aggregate.type == "double"
        and aggregate.argument_type not in (*_SMALL, _WIDE)
    )


_SMALL: Final = ("tinyint", "smallint", "int")
"""Integers that a count multiplies without overflow, as long as the sum has none."""
_WIDE: Final = "bigint"
"""The integers that have an exact sum as decimals alone."""


def _fold(aggregate: Aggregate, argument: str, *, once: bool) -> str:
    """Return a float sum or average that adds the values in ascending order, each once, times its count.

    ``once``: no value has two members.  Else those of one value are counted together: what a sum comes to must not
    depend on what else is aggregated.
    """
    value = f"CAST({argument} AS DOUBLE)"
    if aggregate.distinct:
        values, count = f"collect_set({value})", f"COUNT(DISTINCT {argument})"
        total = f"aggregate(sort_array({values}), 0D, (total, value) -> total + value)"
    else:
        gathered = f"collect_list(struct({value} AS value, {DIFF} AS times)) FILTER (WHERE {argument} IS NOT NULL)"
        count = _count(argument)
        total = (_ONCE if once else _TOGETHER).format(values=f"sort_array({gathered})")
    result = total if aggregate.function == "sum" else f"{total} / {count}"
    return f"CASE WHEN {count} > 0 THEN {result} END"


_ONCE: Final = "aggregate({values}, 0D, (total, each) -> total + each.value * each.times)"
_TOGETHER: Final = (
    "aggregate({values}, named_struct('total', 0D, 'value', 0D, 'times', 0L), (a, each) -> IF(each.value = a.value,"
    " named_struct('total', a.total, 'value', a.value, 'times', a.times + each.times),"
    " named_struct('total', a.total + a.value * a.times, 'value', each.value, 'times', each.times)),"
    " a -> a.total + a.value * a.times)"
)
