"""Law D at definition: refuse a query whose value is not a function of its inputs.

The lists of functions are `sql.INDEFINITE`, with reasons, and `DEFINITE`; a function on neither list is refused.  This
module says where each entry counts: anywhere, with three exceptions: an array that is sorted at once, a list whose
order is given, and a positional function inside a window (the planner completes both orders).

Spark's analysis shows what the text cannot (`algebra.scalar`): whether ``user`` is a column, whether a text becomes a
time, which texts a collation treats as equal.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable
from typing import Final, NoReturn

from sqlglot import exp

from strandline.algebra.scalar import Doubt, DoubtKind, of_clock
from strandline.compute.plan.scalars.order import is_cut_by_row, is_open_list, is_positional, is_settled, of_window
from strandline.compute.plan.sql import (
    FOLDED,
    GATHERING,
    INDEFINITE,
    LISTING,
    ORDERED_BY_PARENT,
    POSITIONAL,
    Word,
    position,
    position_of,
    words,
)
from strandline.errors import DefinitionError, Position

# The functions of Spark that may stand in a view: each is a function of its arguments, or of the multiset of rows.
# Made from ``SHOW FUNCTIONS`` of Spark 4.3 without the operators and without `sql.INDEFINITE`, after each name had
# been looked at; Spark's own flag says too little (`first`, `mode` and `max_by` call themselves deterministic).  A
# test compares both lists with the Spark in use, so a function that a new Spark brings is refused until it has been
# looked at.
DEFINITE: Final = frozenset(
    """
    abs acos acosh add_months aes_decrypt aggregate and any approx_count_distinct approx_top_k_estimate array
    array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union
    arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh avg base64 between bigint bin binary
    bit_and bit_count bit_get bit_length bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
    bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or boolean bround btrim cardinality case cast cbrt
    ceil ceiling char char_length character_length chr coalesce collate collation concat concat_ws contains conv
    convert_timezone cos cosh cot count count_if count_min_sketch crc32 csc cume_dist current_timezone date date_add
    date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname
    dayofmonth dayofweek dayofyear decimal decode degrees dense_rank div double e element_at elt encode endswith
    equal_null every exists exp explode explode_outer expm1 extract factorial filter find_in_set flatten float floor
    forall format_number format_string from_base32 from_csv from_json from_unixtime from_utc_timestamp from_xml get
    get_json_object getbit greatest grouping grouping_id hash hex hll_sketch_estimate hll_union hmac hour hypot if
    ifnull ilike in initcap inline inline_outer instr int is_valid_utf8 is_valid_variant is_variant_null isnan
    isnotnull isnull jaro_winkler_similarity json_array_length json_object_keys json_tuple kll_sketch_get_n_bigint
    kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float lag last_day lcase lead least
    left len length levenshtein like ln locate log log10 log1p log2 lower lpad ltrim luhn_check make_date
    make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8
    make_ym_interval map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries
    map_keys map_values map_zip_with mask max md5 mean median min minute mod month monthname months_between
    named_struct nanvl negative next_day not nth_value ntile nullif nullifzero nvl nvl2 octet_length or overlay
    parse_json parse_url percent_rank percentile percentile_cont percentile_disc pi pmod posexplode posexplode_outer
    position positive pow power printf quarter quote radians raise_error range rank reduce regexp regexp_count
    regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_count repeat
    replace reverse right rint rlike round row_number rpad rtrim schema_of_csv schema_of_json schema_of_variant
    schema_of_variant_agg sec second sentences sequence session_window sha sha1 sha2 shiftleft
    shiftright shiftrightunsigned sign signum sin sinh size slice smallint some sort_array soundex space split
    split_part sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid stack startswith std stddev
    stddev_pop stddev_samp str_to_map string struct substr substring substring_index sum tan tanh theta_difference
    theta_intersection theta_sketch_estimate theta_union time time_bucket time_diff time_from_micros
    time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp
    timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds tinyint to_base32 to_binary to_char to_csv
    to_date to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
    to_utc_timestamp to_varchar to_variant_object to_xml transform transform_keys transform_values translate trim
    trunc try_add try_aes_decrypt try_avg try_divide try_element_at try_make_interval try_make_timestamp
    try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_subtract
    try_sum try_to_binary try_to_date try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8
    try_variant_array_append try_variant_get try_variant_insert try_variant_set tuple_difference_double
    tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer tuple_intersection_double
    tuple_intersection_integer tuple_intersection_theta_double tuple_intersection_theta_integer
    tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
    tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_double
    tuple_union_integer tuple_union_theta_double tuple_union_theta_integer typeof ucase unbase64 unhex unix_date
    unix_micros unix_millis unix_nanos unix_seconds unix_timestamp upper url_decode url_encode validate_utf8 var_pop
    var_samp variance variant_array_append variant_delete variant_explode variant_explode_outer variant_get
    variant_insert variant_set variant_strip_nulls vector_cosine_similarity vector_inner_product vector_l2_distance
    vector_norm vector_normalize weekday weekofyear when width_bucket window window_time xpath xpath_boolean
    xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string xxhash64 year zeroifnull
    zip_with
    """.split()  # noqa: SIM905 - a list of five hundred names reads better as text
)

GRAMMAR: Final = ("timestampadd", "timestampdiff")
"""Definite functions that Spark's grammar knows, and its registry does not."""


_BARE: Final[dict[type[exp.Expr], str]] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentTime: "current_time",
    exp.CurrentUser: "current_user",
}
"""What sqlglot has a class for although no parenthesis follows the name."""

_SYNTAX: Final = (
    exp.And,
    exp.Case,
    exp.Cast,
    exp.Collate,
    exp.Extract,
    exp.If,
    exp.JSONExtract,
    exp.Or,
    exp.Overlay,
    exp.RegexpLike,
    exp.StrPosition,
    exp.Substring,
    exp.Transform,
    exp.Trim,
)
"""What sqlglot has a class for that counts as a function with it: all of them definite."""

_BEFORE_PARENTHESIS: Final = frozenset(
    """
    aggregate all and any array as between by case char character cluster cross cube dec decimal distinct distribute
    else except exists extend filter for from full group having in include inner intersect is join lateral left like
    limit map minus natural not numeric offset on or order outer over partition pivot qualify recursive right rollup
    select semi set sets sort string struct table then union unpivot using values varchar when where window with
    """.split()  # noqa: SIM905 - words
)
"""Words of SQL that a parenthesis may follow."""

_TIMES: Final = frozenset(("date", "timestamp", "timestamp_ltz", "timestamp_ntz"))
_NAMED: Final = re.compile(r"[a-z]{2}", re.IGNORECASE)
_TIES: Final = "ties are broken by the order that rows come in"
_HIDDEN: Final = f"{_TIES}, and the query around it has a form that hides which rows; move it into a subquery in FROM"
_UNREAD: Final = (
    f"{_TIES}, and only Spark reads this text, so we cannot break them by the whole row; write plain SELECT"
)
_LISTED: Final = DEFINITE | frozenset(GRAMMAR)
_UNLISTED: Final = "is not known to have a definite value in a view"
_UNKNOWN: Final = (
    "if it is yours, configure a deterministic udf of this name (functions); "
    "else store its value in a column of the source"
)


def refuse_indefinite(query: exp.Expr | None, sql: str, functions: frozenset[str] = frozenset()) -> None:
    """Raise `DefinitionError`, which names the function and its place, if ``sql``, read as ``query``, is indefinite.

    ``functions``: the definite ones that are not Spark's.
    """
    _refuse_clock_literals(sql)
    if query is None:
        _refuse_by_token(sql, functions)
        return
    for node in query.walk(prune=lambda node: isinstance(node, exp.Hint)):
        if isinstance(node, exp.QueryTransform):
            _refuse_script(position_of(node, sql))
        name = _name(node)
        if name is None:
            continue
        if name in INDEFINITE:
            if not _excused(node, name):
                _refuse(name, _place(node, name, sql))
        elif name.removesuffix("()") not in _LISTED | functions:
            _refuse_unlisted(name, _place(node, name, sql), functions)
    sample = query.find(exp.TableSample)
    if sample is not None:
        _refuse_sample(position_of(sample.parent or sample, sql))


def _name(node: exp.Expr) -> str | None:
    """Return the function that ``node`` calls, lower-case; with ``()`` if that it has no arguments matters."""
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        return f"{name}()" if not node.expressions and f"{name}()" in INDEFINITE else name
    if isinstance(node, exp.Func) and not isinstance(node, _SYNTAX):
        return _BARE.get(type(node)) or node.sql_name().lower()
    return _BARE.get(type(node))


def _excused(node: exp.Expr, name: str) -> bool:
    parent = node.parent
    while isinstance(parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        node, parent = parent, parent.parent
    if name in POSITIONAL:
        return isinstance(parent, exp.Window) and parent.this is node
    if name in LISTING:
        return isinstance(parent, exp.WithinGroup) and parent.this is node
    if name not in GATHERING:
        return False
    if isinstance(parent, exp.Window) and parent.this is node:
        parent = parent.parent
    return (
        isinstance(parent, exp.Anonymous)
        and parent.name.lower() in ORDERED_BY_PARENT
        and not any(isinstance(argument, exp.Lambda) for argument in parent.expressions)
    )


def _place(node: exp.Expr, name: str, sql: str) -> Position | None:
    if "start" in node.meta:
        return position(sql, int(node.meta["start"]))
    for word in words(sql):
        if word.text.lower() == name and not word.literal:
            return position(sql, word.start)
    return position_of(node, sql)


def _refuse_by_token(sql: str, functions: frozenset[str]) -> None:
    """The same for text that only Spark can read: a call is a word before a parenthesis that is no word of SQL."""
    listed = _LISTED | functions
    tokens = words(sql)  # a hint is one of them
    for before, word, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        name, place = word.text.lower(), position(sql, word.start)
        called = following is not None and following.text == "(" and word.text[:1].isidentifier()
        if word.literal:
            if before is not None and before.text.lower() == "using":
                _refuse_script(place)
        elif called and name in INDEFINITE:
            _refuse(name, place)
        elif name == "tablesample":
            _refuse_sample(place)
        elif called and name not in listed and _last_word(name) not in _BEFORE_PARENTHESIS and not _names(before):
            _refuse_unlisted(name, place, functions)


def _last_word(name: str) -> str:
    return name.rpartition(" ")[2]  # `GROUP BY` is one token


def _names(before: Word | None) -> bool:
    """Tell whether the word after ``before`` is a name that is given here: of a column, or of a query."""
    return before is not None and before.text.lower() in {"as", "with", "recursive"}


def _refuse(name: str, place: Position | None) -> NoReturn:
    reason, instead = INDEFINITE[name]
    name = name.removesuffix("()")
    raise DefinitionError(f"{name} has no definite value in a view: {reason}; {instead} instead", place)


def _refuse_unlisted(name: str, place: Position | None, functions: frozenset[str]) -> NoReturn:
    near = difflib.get_close_matches(name, _LISTED | functions, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else _UNKNOWN
    raise DefinitionError(f"the function {name} {_UNLISTED}; {hint}", place)


def _refuse_sample(place: Position | None) -> NoReturn:
    reason = "it takes other rows each time; filter by a hash of the row instead"
    raise DefinitionError(f"TABLESAMPLE has no definite value in a view: {reason}", place)


def _refuse_script(place: Position | None) -> NoReturn:
    raise DefinitionError("TRANSFORM … USING has no definite value in a view: a script may do anything", place)


def _refuse_clock_literals(sql: str) -> None:
    """Refuse ``TIMESTAMP 'now'``: Spark's parser puts the time in its place, so no analysis shows it."""
    tokens = words(sql)
    for word, following in itertools.pairwise(tokens):
        typed = following.literal and not word.literal and word.text.lower() in _TIMES
        if typed and of_clock(following.text):
            _refuse_clock(following.text.strip(), position(sql, following.start))


def refuse_doubts(doubts: Iterable[Doubt]) -> None:
    """Raise `DefinitionError` for the first of ``doubts`` that leaves a query of any form without one answer."""
    for doubt in doubts:
        match doubt.kind:
            case DoubtKind.CALL:
                _refuse(doubt.name, doubt.place)
            case DoubtKind.CLOCK:
                _refuse_clock(doubt.name.strip(), doubt.place)
            case DoubtKind.COLLATION:
                _refuse_collation(doubt.name, doubt)
            case DoubtKind.WINDOW if doubt.collation and _by_position(doubt):
                _refuse_collation(f"{doubt.name} OVER", doubt)


def refuse_order(doubts: Iterable[Doubt]) -> None:
    """Raise `DefinitionError` if a query that only Spark reads lets the order of rows decide what it gives."""
    for doubt in doubts:
        if doubt.kind is DoubtKind.CUT:
            _refuse_order(doubt.name, doubt.place, _UNREAD)
        if doubt.kind is DoubtKind.WINDOW and _by_position(doubt):
            _refuse_order(f"{doubt.name} OVER", doubt.place, _UNREAD)


def _by_position(window: Doubt) -> bool:
    return window.rows or window.name in POSITIONAL


def _refuse_clock(said: str, place: Position | None) -> NoReturn:
    if _NAMED.match(said):
        reason = f"Spark reads it as a time of the clock, at which the view is computed; {INDEFINITE['now'][1]} instead"
    else:
        reason = "it has no date, so that Spark takes the day on which the view is computed; write the date too"
    raise DefinitionError(f"'{said}' has no definite value in a view: {reason}", place)


def _refuse_collation(what: str, doubt: Doubt) -> NoReturn:
    raise DefinitionError(
        f"{what} has no definite value over texts that {doubt.collation} compares: it keeps one of several texts "
        "that are equal by this collation, and which one depends on the order that rows come in; compute it over a "
        "text that is the same for all of them, as lower(…), or over CAST(… AS STRING)",
        doubt.place,
    )


def refuse_unordered(query: exp.Expr, sql: str) -> None:
    """Raise `DefinitionError` if ``query``, which will run as it is, lets the order of rows decide what it gives.

    Where the planner understands a query it completes such orders itself (`order.top`, `order.complete_windows`), and
    so it does for a LIMIT inside it (`order.complete_cuts`).
    """
    for node in query.walk():
        if isinstance(node, exp.Limit | exp.Offset | exp.Fetch) and not is_cut_by_row(node.parent):
            _refuse_order("LIMIT", position_of(node, sql), _HIDDEN)
        if isinstance(node, exp.Window) and is_positional(node) and not is_settled(node):
            _refuse_order(f"{of_window(node) or node.this.name} OVER", position_of(node, sql), _why(node))
        if is_open_list(node):
            _refuse_order(node.this.name.lower(), position_of(node, sql), _HIDDEN)


def _why(window: exp.Window) -> str:
    """Return why the order of the rows of ``window`` is not completed, and what to write."""
    if window.args.get("alias") is not None:
        return "it uses a window that WINDOW names, whose order we do not complete; write the window in OVER (…)"
    if window.args.get("order") is None:
        return "no ORDER BY says which row comes first; write one in OVER (…)"
    ranged = (window.args.get("spec") or exp.WindowSpec(kind="RANGE")).args.get("kind", "").upper() != "ROWS"
    if ranged and (isinstance(window.this, exp.IgnoreNulls) or window.args.get("spec") is not None):
        return (
            "its frame is a RANGE, in which rows with equal ORDER BY values come in any order; "
            "write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW, or other ROWS: then the whole row breaks ties"
        )
    return _HIDDEN


def inexact(query: exp.Expr | None) -> list[str]:
    """Return a note if ``query``, which will run as it is, may add up floats in an order that is Spark's to choose."""
    calls = () if query is None else query.find_all(exp.Anonymous)
    found = sorted({call.name.lower() for call in calls if call.name.lower() in FOLDED})
    if query is not None and not found:
        return []
    return [
        f"{', '.join(found) or 'an aggregate'} over floats, if any, is Spark's here: its last bits may differ by run"
    ]


def _refuse_order(what: str, place: Position | None, reason: str) -> NoReturn:
    raise DefinitionError(f"{what} has no definite value here: {reason}", place)
