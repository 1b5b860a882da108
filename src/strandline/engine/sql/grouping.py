"""SQL text of the rules that work by key: running sums, touched groups, and the newest of keyed records.

`accumulate` is the text of `compute/rules/accumulate.py`, `regroup` that of `compute/rules/regroup.py`; `newest` that
of the updates that keyed records make.  Keys are compared with ``<=>`` and as they are stored, so NULL is a key like
any other, and −0.0 is 0.0.

A row that is there n times counts n times: the updates of a group are first summed up by what its aggregates look at,
then repeated.  Float sums and averages fold the sorted values, so that they do not depend on how rows were batched or
partitioned (law D).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlglot import exp

from strandline.algebra import types
from strandline.algebra.messages import GONE, KEPT, KEY, NOTHING_KEPT, ORDER
from strandline.algebra.nodes import Accumulate, Accumulator, Aggregate, Newest, Regroup
from strandline.algebra.scalar import Scalar, binary, cast, column
from strandline.algebra.scalar import text as written
from strandline.algebra.schema import DIFF, ERROR, TIME, quote
from strandline.engine.frames import forms
from strandline.engine.sql import fragments
from strandline.engine.sql.fragments import Text, listed, literal

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
    repeated = f" {fragments.lateral(outer=outer)}" if any(map(_repeats, aggregates)) else ""
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


_NEXT: Final = "__next"
_FIRST: Final = "__first"
_CHAPTER: Final = "__chapter"
_TEXT: Final = "__text"
_STAYS: Final = "__stays"
_RUNNING: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


def newest(node: Newest, records: str, held: str | None, errors: str | None, text: Text) -> str:
    """Return the SELECT of the updates; the arguments name what the inputs of ``node`` give.

    The newest record of each key and time counts.  One sort by key, time and order shows for each record when the next
    one of its key comes: at the same time (then it does not count) or later (then its row is withdrawn there).  What
    was held before is withdrawn at the first time of its key.  So the text names no time, and is the same for any
    number of times.  Equal rows cancel where they are staged.

    If records leave out unchanged values, the held row is the first entry of its key's story.  A story falls into
    chapters, each of which begins with a record that says everything (a row, an error, or that there is nothing).
    What other records of the chapter left out is the last value in it; without a row at its beginning there is none.

    The naive truth: `sources/envelopes.py`.
    """
    known = text.define("known", _known(node, records))
    first = text.define("first", _first(node, known))
    touched = None if held is None else text.define("touched", _touched(node, held, first, text))
    if KEPT in node.records.names:
        known = text.define("filled", _filled(node, text.define("story", _story(node, known, touched, text)), text))
    counting = (
        known
        if node.once
        else text.define("counting", _counting(node, known, sorted_already=KEPT in node.records.names))
    )
    terms = [_standing(node, counting)]
    if touched is not None:
        terms.append(_select(node, map(quote, node.schema.names), "NULL", _FIRST, f"-{DIFF}", touched))
    if errors is not None:
        terms.append(_errors_gone(node, errors, first, text))
    return text.union(terms)


def _known(node: Newest, records: str) -> str:
    """The records, with their keys as they are stored."""
    keys = dict.fromkeys(node.key)
    columns = [
        _as(forms.normalised(quote(name), kind), name) if name in keys else quote(name)
        for name, kind in types.columns(node.schema)
    ]
    own = [TIME, ORDER, GONE, *([ERROR] if ERROR in node.records.names else [])]
    if KEPT in node.records.names:
        whole = f"{GONE} OR {KEPT} IS NULL OR size({KEPT}) <= 0"
        if ERROR in node.records.names:
            whole = f"{whole} OR {ERROR} IS NOT NULL"
        own.append(f"IF({whole}, NULL, {KEPT}) AS {KEPT}")
    return f"SELECT {listed([*columns, *own])} FROM {records}"


def _first(node: Newest, known: str) -> str:
    """Each key that the records touch, and the first time at which they do."""
    keys = listed(_keys(node))
    where = f" WHERE {GONE} IS NOT NULL" if ERROR in node.records.names else ""
    if node.once:
        return f"SELECT {keys}, {TIME} AS {_FIRST} FROM {known}{where}"
    return f"SELECT {keys}, min({TIME}) AS {_FIRST} FROM {known}{where} GROUP BY {keys}"


def _touched(node: Newest, held: str, first: str, text: Text) -> str:
    """The rows that are there before and whose keys are touched."""
    columns = listed(f"h.{quote(name)}" for name in node.schema.names)
    same = " AND ".join(f"h.{key} <=> f.{key}" for key in _keys(node))
    hint = text.hint(small="f") if text.single else ""
    return f"SELECT {hint}{columns}, h.{DIFF}, f.{_FIRST} FROM {held} h JOIN {first} f ON {same}"


def _story(node: Newest, known: str, touched: str | None, text: Text) -> str:
    """All that is said of each key, the row that was held first: it has no time."""
    told = [*map(quote, node.schema.names), TIME, ORDER, GONE, KEPT]
    erring = ERROR in node.records.names
    terms = [f"SELECT {listed([*told, ERROR if erring else f'CAST(NULL AS STRING) AS {ERROR}'])} FROM {known}"]
    if touched is not None:
        columns = listed(map(quote, node.schema.names))
        touched = f"(SELECT {columns} FROM {touched} GROUP BY {columns} HAVING sum({DIFF}) <> 0)"
        nothing = [f"CAST(NULL AS BIGINT) AS {TIME}", f"CAST(NULL AS BIGINT) AS {ORDER}", f"false AS {GONE}"]
        nothing += [f"CAST(NULL AS ARRAY<STRING>) AS {KEPT}", f"CAST(NULL AS STRING) AS {ERROR}"]
        terms.append(f"SELECT {listed([columns, *nothing])} FROM {touched}")
    return text.union(terms)


def _filled(node: Newest, story: str, text: Text) -> str:
    """The records with what they left out, or with an error where that is nowhere; `_NEXT` as `_counting` has it."""
    order = f"PARTITION BY {listed(_parts(node))} ORDER BY {_order(node, story=True)}"
    chapter = f"sum(IF({KEPT} IS NULL, 1, 0)) OVER ({order} {_RUNNING}) AS {_CHAPTER}"
    chapters = text.define("chapters", f"SELECT *, {chapter}, lead({TIME}) OVER ({order}) AS {_NEXT} FROM {story}")
    order = f"PARTITION BY {listed([*_parts(node), _CHAPTER])} ORDER BY {_order(node, story=True)}"
    columns = [quote(name) if name in node.key else _last(name, order) for name in node.schema.names]
    began = f"first_value({KEPT} IS NULL AND NOT {GONE} AND {ERROR} IS NULL) OVER ({order} {_RUNNING})"
    reason = literal(f'{{"reason":"{NOTHING_KEPT}"}}')
    error = f"IF({KEPT} IS NOT NULL AND NOT {began}, {reason}, {ERROR}) AS {ERROR}"
    filled = listed([*columns, TIME, GONE, error, _NEXT])
    return f"SELECT * FROM (SELECT {filled} FROM {chapters}) WHERE {TIME} IS NOT NULL"


def _last(name: str, order: str) -> str:
    left_out = f"COALESCE(array_contains({KEPT}, {literal(name)}), false)"
    said = f"last_value(IF({left_out}, NULL, struct({quote(name)} AS {_STAYS})), true) OVER ({order} {_RUNNING})"
    return f"{said}.{_STAYS} AS {quote(name)}"


def _counting(node: Newest, known: str, *, sorted_already: bool) -> str:
    """The last record of each key and time, and the time of the key's next one (NULL: there is none)."""
    source = known
    if not sorted_already:
        order = f"PARTITION BY {listed(_parts(node))} ORDER BY {_order(node, story=False)}"
        source = f"(SELECT *, lead({TIME}) OVER ({order}) AS {_NEXT} FROM {known})"
    lone = f" OR {GONE} IS NULL" if ERROR in node.records.names else ""
    return f"SELECT * FROM {source} WHERE {_NEXT} IS NULL OR {_NEXT} > {TIME}{lone}"


def _standing(node: Newest, counting: str) -> str:
    """What comes with the records that count, and goes at the key's next time; an error without a key stays."""
    lone = f" OR {GONE} IS NULL" if ERROR in node.records.names else ""
    comes, goes = (f"named_struct('at', {time}, 'sign', {sign})" for time, sign in ((TIME, "1L"), (_NEXT, "-1L")))
    both = f"LATERAL VIEW inline(IF({_NEXT} IS NULL{lone}, array({comes}), array({comes}, {goes}))) u AS __at, __sign"
    source = f"{counting} {both} WHERE NOT {GONE}{lone}"
    if node.once:
        source = f"(SELECT *, {TIME} AS __at, 1L AS __sign FROM {counting}) WHERE NOT {GONE}{lone}"
    if not {ERROR, KEPT} & {*node.records.names}:
        return _select(node, map(quote, node.schema.names), "NULL", "__at", "__sign", source)
    columns = [f"IF({ERROR} IS NULL, {quote(name)}, NULL) AS {quote(name)}" for name in node.schema.names]
    body = f"IF(startswith({ERROR}, '{{'), {ERROR}, to_json(named_struct('reason', {ERROR})))"
    keyed = f"concat('{{\"{KEY}\":', {_text(node)}, ',', substring({body}, 2))"
    error = f"IF({ERROR} IS NULL OR {GONE} IS NULL, {ERROR}, {keyed})"
    return _select(node, columns, error, "__at", "__sign", source)


def _errors_gone(node: Newest, errors: str, first: str, text: Text) -> str:
    """The errors that are there before and whose keys are touched, withdrawn."""
    # Both sides as Spark writes JSON that it has read.
    own = f"get_json_object(concat('{{\"{KEY}\":', {_text(node)}, '}}'), '$.{KEY}')"
    keys = f"(SELECT {own} AS {_TEXT}, {_FIRST} FROM {first})"
    hint = text.hint(small="f") if text.single else ""
    source = f"{errors} e JOIN {keys} f ON get_json_object(e.{ERROR}, '$.{KEY}') = f.{_TEXT}"
    return _select(node, _nothing(node), f"e.{ERROR}", f"f.{_FIRST}", f"-e.{DIFF}", source, hint)


def _text(node: Newest) -> str:
    """The key of a row as JSON: its columns as texts that are equal iff the values are."""
    kinds = dict(types.columns(node.schema))
    fields = listed(f"{literal(name)}, {_plain(quote(name), kinds[name])}" for name in node.key)
    return f"to_json(named_struct({fields}), map('ignoreNullFields', 'false'))"


def _plain(value: str, kind: types.Type) -> str:
    match kind:
        case types.Atom("string"):
            return value
        case types.Atom("binary"):
            return f"hex({value})"
        case types.Atom("timestamp"):  # its text depends on the session's zone, and one hour a year has it twice
            return f"CAST(unix_micros({value}) AS STRING)"
        case _:
            return f"CAST({value} AS STRING)"


def _select(node: Newest, columns: Iterable[str], error: str, time: str, diff: str, source: str, hint: str = "") -> str:
    own = [_as("CAST(NULL AS STRING)" if error == "NULL" else error, ERROR)] if ERROR in node.names else []
    return f"SELECT {hint}{listed([*columns, *own, _as(time, TIME), _as(diff, DIFF)])} FROM {source}"


def _nothing(node: Newest) -> list[str]:
    return [f"CAST(NULL AS {column.type}) AS {quote(column.name)}" for column in node.schema]


def _keys(node: Newest) -> list[str]:
    return [quote(name) for name in node.key]


def _parts(node: Newest) -> list[str]:
    """What a key's records have in common, and those of no other key: errors without a key are by themselves."""
    return [*([f"{GONE} IS NULL"] if ERROR in node.records.names else []), *_keys(node)]


def _order(node: Newest, *, story: bool) -> str:
    """The order of a key's records; what follows the order proper makes a choice between equals definite (law D)."""
    rest = [quote(name) for name in node.schema.names if name not in node.key]
    own = [ERROR] if story or ERROR in node.records.names else []
    return listed([TIME, ORDER, GONE, *own, *([KEPT] if story else []), *rest])


def _as(sql: str, name: str) -> str:
    return sql if sql in {name, quote(name)} else f"{sql} AS {name if name.startswith('__') else quote(name)}"
