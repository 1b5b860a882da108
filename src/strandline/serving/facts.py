"""Facts: what the server is and can do, by the numbers that Flight SQL gives to such questions (``SqlInfo``).

All that a JDBC driver asks for is here: it takes a question without an answer for an error of its own.  Limits are 0
where there is none, or none that is known.

Source: https://arrow.apache.org/docs/format/FlightSql.html, and the Java API of java.sql.DatabaseMetaData.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import pyarrow as pa

_LIMITS: Final = range(541, 562)
_SERIALIZABLE: Final = 4

FACTS: Final[dict[int, Any]] = {
    0: "Strandline",  # the server's name
    1: version("strandline"),
    2: pa.__version__,
    3: False,  # it is not read-only
    4: True,  # it takes SQL
    5: False,  # and no Substrait
    9: False,  # a query is cancelled by ending its call
    10: True,  # rows come in bulk
    11: True,  # also in a transaction
    500: False,  # there are no catalogs to create
    501: False,  # and no schemas
    502: True,  # there are tables
    504: "`",  # what quotes a name
    506: True,  # every table can be read
    508: [],  # further words that are reserved
    509: [],  # functions: those of Spark, too many to list
    510: [],
    511: [],
    512: [],
    513: "\\",  # what escapes a character of a pattern
    514: "",  # a name without quotes has no other characters
    515: True,  # columns may have aliases
    516: True,  # NULL + 1 is NULL
    517: {},  # there is no CONVERT
    518: True,  # tables may have aliases
    519: False,  # which need not differ from their names
    520: True,  # ORDER BY takes expressions
    521: True,  # and columns that are not shown
    523: True,  # LIKE … ESCAPE
    524: False,  # every column may be NULL
    527: False,  # there are no constraints
    529: "schema",
    530: "procedure",
    531: "catalog",
    532: False,
    536: False,  # there is no SELECT … FOR UPDATE
    537: False,  # and no procedure
    539: True,  # subqueries may be correlated
    **dict.fromkeys(_LIMITS, 0),
    556: False,
    562: _SERIALIZABLE,
    563: True,  # there are transactions
    565: False,  # a definition commits none
    566: False,  # and is refused in one
    572: True,  # several rows of parameters at once
    573: False,  # no savepoints
    574: False,  # parameters are question marks
    575: False,
    576: False,
}
"""Texts, booleans, whole numbers, lists of texts and (empty) maps."""

CHOICES: Final[dict[int, int]] = {
    8: 1,  # transactions, without savepoints
    100: 0,
    101: 600_000,  # milliseconds that a transaction may rest
    503: 1,  # names are compared without case
    505: 1,  # also those in quotes
    507: 1,  # NULL is the least
    522: 0b11,  # GROUP BY what is not shown, and with further columns
    525: 0b11,  # core grammar
    526: 0b1,  # the entry level of SQL-92
    528: 0b110,  # full outer joins
    533: 0,
    534: 0,
    535: 0,
    538: 0b111,  # subqueries in comparisons, EXISTS and IN
    540: 0b11,  # UNION, UNION ALL
    564: 1 << _SERIALIZABLE,
    567: 0b10,  # a result is read forward
    568: 0,
    569: 0,
    570: 0,
    571: 0,
}
"""Choices, and sets of them."""
