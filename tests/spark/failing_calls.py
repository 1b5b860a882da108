"""Calls that fail for a row: chosen ones, which throw in different ways, and those of every function, by signatures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from strandline.compute.plan.scalars.definite import DEFINITE

STORIES: Final = (
    "{bad",
    "two\nlines [",
    'it\'s "quoted" `so`',
    "No space left on device",
    "java.net.ConnectException: x",
    "java.net.SocketTimeoutException: Read timed out",
    "java.lang.OutOfMemoryError: Java heap space",
    "[FAILED_READ_FILE.NO_HINT] x SQLSTATE: KD001",
    "[CAST_INVALID_INPUT] SQLSTATE: 22018\n[FAILED_READ_FILE.FILE_NOT_EXIST] x",
    "a row has the negative count -1: {}",
    "ExecutorLostFailure (executor 1 exited)",
    "Total size of serialized results of 3 tasks is bigger than spark.driver.maxResultSize",
    "Job aborted due to stage failure: Total size of serialized results of ",
    'Traceback (most recent call last):\n  File "x", line 1\nValueError: x',
    "\n\tat org.apache.spark.sql.catalyst.analysis.CheckAnalysis",
)
"""What a stranger may write into a row: words of failures that are none of the row's."""

CALLS: Final = (
    "CAST(s AS INT)",
    "CAST(s AS BOOLEAN)",
    "CAST(s AS DATE)",
    "CAST(s AS DECIMAL(9, 2))",
    "CAST(s AS INTERVAL DAY)",
    "to_timestamp(s, 'yyyy-MM-dd')",
    "raise_error(s)",
    "assert_true(s = 'q', s)",
    "regexp_replace('a', concat('(', s), 'x')",
    "from_json(concat('{', s), 'x INT', map('mode', 'FAILFAST'))",
    "from_csv(s, 'x INT', map('mode', 'FAILFAST'))",
    "from_xml(s, 'x INT', map('mode', 'FAILFAST'))",
    "parse_json(concat('{', s))",
    "xpath(s, 'a/b')",
    """xpath_string(concat('<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x">', s), 'a')""",
    "from_utc_timestamp(TIMESTAMP '2020-01-01 00:00:00', s)",
    "date_format(TIMESTAMP '2020-01-01 00:00:00', concat('Y', s))",
    "map_from_arrays(array(s, s), array(1, 2))",
    "sequence(1, 5, length(s) * 0)",
    "format_string('%d', s)",
    "to_number(s, '999')",
    "url_decode(concat('%', s))",
    "parse_url(concat('[', s), 'HOST')",
    "encode(s, s)",
    "decode(CAST(concat(X'FF', CAST(s AS BINARY)) AS BINARY), 'utf-8')",
    "s LIKE concat(s, '\\\\')",
    "unhex(concat('zz', s)) IS NULL AND CAST(s AS INT) > 1",
    "element_at(array(s), 2)",
    "make_date(2020, 13, length(s))",
    "st_asbinary(st_geomfromwkb(CAST(s AS BINARY)))",
    "theta_sketch_estimate(CAST(s AS BINARY))",
)
"""Calls that fail for each of `STORIES` as ``s``."""

ARGUMENTS: Final = (
    *("s", "CAST(s AS BINARY)", "n", "-n", "n - n", "CAST(n AS BIGINT) * 9000000000000000000", "d", "array(s, s)"),
    *("map(s, n)", "struct(s, n)", "TIMESTAMP '0001-01-01 00:00:00'", "DATE '9999-12-31'", "'$.['", "'%d %d'", "NULL"),
    *("array(n, NULL)", "x -> CAST(s AS INT)", "(x, y) -> CAST(s AS INT)", "parse_json('[1]')", "'x INT'", "n > 0"),
)
"""Arguments for every place of a signature, over the columns ``s STRING, n INT, d DOUBLE``."""
ARITY_MAX: Final = 4


def of_every_function(chance: random.Random, tries: int) -> Iterator[tuple[str, str]]:
    """Yield functions with calls of them, ``tries`` of each; most of the calls are no calls to Spark."""
    for name in sorted(DEFINITE):
        if name.isidentifier():
            for _ in range(tries):
                arguments = chance.choices(ARGUMENTS, k=chance.randint(0, ARITY_MAX))
                yield name, f"`{name}`({', '.join(arguments)})"
