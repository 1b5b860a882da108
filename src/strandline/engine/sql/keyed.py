"""SQL text of the updates that keyed records make: the newest of each key and time counts.

One sort by key, time and order tells for each record when the next one of its key comes: at the same time (then it does
not count) or later (then what it says is withdrawn there).  What was held goes at the first time of its key.  So the
text names no time, and is the same however many times there are.  Equal rows cancel where they are staged.

Where records leave out what stays as it was, the held row is the first of its key's story.  A story falls into
chapters, each of which begins with a record that says everything (a row, an error, or that there is nothing); what
others of the chapter left out is the last value in it, and without a row at its beginning there is none.

Keys are compared with ``<=>`` and as they are stored: NULL is a value like any other, and −0.0 is 0.0.

The naive truth: `sources/envelopes/keyed_spec.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from strandline.algebra import types
from strandline.algebra.keyed import GONE, KEPT, KEY, NOTHING_KEPT, ORDER
from strandline.algebra.nodes import Newest
from strandline.algebra.schema import DIFF, ERROR, TIME, quote
from strandline.engine.frames import forms
from strandline.engine.sql.text import Text, listed
from strandline.engine.sql.tried import literal

_NEXT: Final = "__next"
_FIRST: Final = "__first"
_CHAPTER: Final = "__chapter"
_TEXT: Final = "__text"
_STAYS: Final = "__stays"
_RUNNING: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


def newest(node: Newest, records: str, held: str | None, errors: str | None, text: Text) -> str:
    """Return the SELECT of the updates; the arguments name what the inputs of ``node`` give."""
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
