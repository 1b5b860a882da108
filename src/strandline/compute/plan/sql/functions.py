"""What we must know of Spark's functions: which aggregate, which are indefinite, which lean on the order of rows.

Law D: the value of a view at t is a function of its inputs at t, bit for bit.  A function that reads a clock, chance
or the layout of the data has no such value; neither has an aggregate whose result depends on the order that rows come
in, unless that order is given.  Spark calls several of them deterministic, so the lists are ours: `INDEFINITE` is
refused, with the reason and what to use instead; `definite_functions.DEFINITE` is accepted; a function on neither list
is refused, because nothing is known of it.
"""

from __future__ import annotations

from typing import Final

PLANNED: Final = {
    "avg": "avg",
    "mean": "avg",
    "bool_and": "min",
    "bool_or": "max",
    "any": "max",
    "every": "min",
    "some": "max",
    "count": "count",
    "count_if": "count",
    "max": "max",
    "min": "min",
    "sum": "sum",
}
"""Aggregates that a `Reduce` knows, by the function it uses for them."""

MERGING: Final = ("session_window",)
"""Functions that group rows by their neighbours: the group of a row is no function of the row."""

VARIANCES: Final = {
    "std": ("sample", True),
    "stddev": ("sample", True),
    "stddev_samp": ("sample", True),
    "stddev_pop": ("population", True),
    "variance": ("sample", False),
    "var_samp": ("sample", False),
    "var_pop": ("population", False),
}
"""Aggregates that are folds over the sorted values: which divisor, and whether the root is taken."""

FOLDED: Final = frozenset(("sum", "avg", "mean", "try_sum", "try_avg", *VARIANCES))
"""Aggregates that round at each step when they add up floats, so that the order of rows shows in the last bits."""

_CHANCE: Final = "each evaluation gives another value"
_CLOCK: Final = "it depends on when the view is computed"
_LAYOUT: Final = "it depends on how Spark lays the rows out"
_ORDER: Final = "it depends on the order that rows come in"
_FLOAT: Final = "its last bits depend on the order that rows come in"
_SKETCH: Final = "the bytes of its sketch depend on the order that rows come in"
_OUTSIDE: Final = "it depends on more than its arguments"
_STORED: Final = "store the value in a column of the source"
_ROW: Final = (
    "read the row of a clock source, (SELECT max(at) FROM clock), after CREATE SOURCE clock (at TIMESTAMP) USING clock"
)
_SORTED: Final = "wrap it in array_sort(…)"

INDEFINITE: Final = {
    "rand": (_CHANCE, f"{_STORED}, or derive it from the row with hash(…)"),
    "random": (_CHANCE, f"{_STORED}, or derive it from the row with hash(…)"),
    "randn": (_CHANCE, _STORED),
    "randstr": (_CHANCE, _STORED),
    "uniform": (_CHANCE, _STORED),
    "uuid": (_CHANCE, f"{_STORED}, or derive it from the row with md5(…)"),
    "shuffle": (_CHANCE, "use array_sort(…)"),
    "aes_encrypt": (_CHANCE, _STORED),
    "now": (_CLOCK, _ROW),
    "current_timestamp": (_CLOCK, _ROW),
    "localtimestamp": (_CLOCK, _ROW),
    "current_date": (_CLOCK, _ROW),
    "curdate": (_CLOCK, _ROW),
    "current_time": (_CLOCK, "use a time column of the source"),
    "localtime": (_CLOCK, "use a time column of the source"),
    "unix_timestamp()": (_CLOCK, "give it the timestamp to convert"),
    "current_user": ("it depends on the user that computes the view", _STORED),
    "user": ("it depends on the user that computes the view", _STORED),
    "session_user": ("it depends on the user that computes the view", _STORED),
    "current_catalog": ("it depends on the session", "write the name"),
    "current_database": ("it depends on the session", "write the name"),
    "current_schema": ("it depends on the session", "write the name"),
    "current_path": ("it depends on the session", "write the name"),
    "collations": (_OUTSIDE, "write its rows as VALUES"),
    "sql_keywords": (_OUTSIDE, "write its rows as VALUES"),
    "python_worker_logs": (_OUTSIDE, "leave it out"),
    "measure": ("it means what a metric view says", "write the aggregate"),
    **dict.fromkeys(
        ("from_avro", "from_protobuf", "schema_of_avro", "to_avro", "to_protobuf"),
        ("it needs a package that changes what it does", "use from_json(…) or to_json(…)"),
    ),
    "schema_of_xml": ("its options may name files of the server", "write the schema as a text"),
    "version": ("it depends on the Spark that computes the view", "write the version"),
    "monotonically_increasing_id": (_LAYOUT, "use row_number() OVER (ORDER BY …)"),
    "spark_partition_id": (_LAYOUT, "leave it out"),
    "input_file_name": (_LAYOUT, "let the source add the file's name as a column"),
    "input_file_block_start": (_LAYOUT, "leave it out"),
    "input_file_block_length": (_LAYOUT, "leave it out"),
    "reflect": ("it may call anything", _STORED),
    "java_method": ("it may call anything", _STORED),
    "try_reflect": ("it may call anything", _STORED),
    "first": (_ORDER, "use min(…) or max(…)"),
    "first_value": (_ORDER, "use min(…) or max(…)"),
    "last": (_ORDER, "use min(…) or max(…)"),
    "last_value": (_ORDER, "use min(…) or max(…)"),
    "any_value": (_ORDER, "use min(…) or max(…)"),
    "mode": (
        "ties are broken by the order that rows come in",
        "count in a subquery, and take the greatest with a LIMIT",
    ),
    "max_by": ("ties are broken by the order that rows come in", "use max(struct(ordering, value)).value"),
    "min_by": ("ties are broken by the order that rows come in", "use min(struct(ordering, value)).value"),
    "collect_list": (_ORDER, _SORTED),
    "collect_set": (_ORDER, _SORTED),
    "array_agg": (_ORDER, _SORTED),
    "listagg": (_ORDER, "write listagg(…) WITHIN GROUP (ORDER BY …)"),
    "string_agg": (_ORDER, "write string_agg(…) WITHIN GROUP (ORDER BY …)"),
    "approx_percentile": (_ORDER, "use percentile(…), which is exact"),
    "percentile_approx": (_ORDER, "use percentile(…), which is exact"),
    "histogram_numeric": (_ORDER, "use width_bucket(…) and GROUP BY"),
    **{
        f"approx_top_k{step}": (_ORDER, "count in a subquery, and take the greatest with a LIMIT")
        for step in ("", "_accumulate", "_combine")
    },
    "collect_union": (_ORDER, "use array_sort(array_distinct(flatten(collect_list(…))))"),
    "counter_diff": (_ORDER, "use lag(…) OVER (ORDER BY …)"),
    "vector_avg": (_FLOAT, "compute it from sums over decimals"),
    "vector_sum": (_FLOAT, "compute it from sums over decimals"),
    **dict.fromkeys(
        (
            *("hll_sketch_agg", "hll_union_agg", "theta_intersection_agg", "theta_sketch_agg", "theta_union_agg"),
            *(
                f"tuple_{kind}_agg_{type_}"
                for kind in ("intersection", "sketch", "union")
                for type_ in ("double", "integer")
            ),
        ),
        (_SKETCH, "use approx_count_distinct(…) or count(DISTINCT …)"),
    ),
    **{
        f"kll_{kind}_{type_}": (_SKETCH, "use percentile(…), which is exact")
        for kind in ("merge_agg", "sketch_agg", "sketch_merge")
        for type_ in ("bigint", "double", "float")
    },
    "corr": (_FLOAT, "compute it from sums over decimals"),
    "covar_pop": (_FLOAT, "compute it from sums over decimals"),
    "covar_samp": (_FLOAT, "compute it from sums over decimals"),
    "kurtosis": (_FLOAT, "compute it from sums over decimals"),
    "skewness": (_FLOAT, "compute it from sums over decimals"),
    **{
        f"regr_{name}": (_FLOAT, "compute it from sums over decimals")
        for name in ("avgx", "avgy", "intercept", "r2", "slope", "sxx", "sxy", "syy")
    },
}
"""Functions that are refused: why, and what to use instead.  Name with ``()``: without arguments only."""

ORDERED_BY_PARENT: Final = ("array_sort", "sort_array", "size", "array_size", "cardinality")
"""Functions whose value does not depend on the order of the array they are given."""

GATHERING: Final = ("array_agg", "collect_list", "collect_set")

LISTING: Final = ("listagg", "string_agg")
"""Functions that gather texts in the order that WITHIN GROUP gives; what is listed is added to that order."""

CHOOSING: Final = ("any_value", "first", "first_value", "last", "last_value", "nth_value")
"""Window functions that give the value of one row of the frame."""

POSITIONAL: Final = (*CHOOSING, "lag", "lead", "ntile", "row_number")
"""Window functions that look at the order of rows within peers: the whole row is added to their ORDER BY."""

_OTHER_AGGREGATES: Final = (
    "approx_count_distinct", "bit_and", "bit_or", "bit_xor", "bitmap_construct_agg", "bitmap_or_agg",
    "bitmap_and_agg", "count_min_sketch", "grouping", "grouping_id", "median", "percentile",
    "percentile_cont", "percentile_disc", "regr_count", "schema_of_variant_agg", "try_avg", "try_sum",
)  # fmt: skip

AGGREGATES: Final = frozenset((*PLANNED, *VARIANCES, *GATHERING, *LISTING, *_OTHER_AGGREGATES))
"""Names that make a SELECT aggregate.  One that is missing here is found out by Spark, and the query then is
recomputed whole."""
