"""Statements that Strandline does not take: what to write instead.

Spark and PostgreSQL have many more than we do.  Each is refused by its own name, so that the user need not guess
whether it was misspelt.
"""

from __future__ import annotations

import difflib
from typing import Final

ONE: Final = "write DELETE and INSERT between BEGIN and COMMIT"

STATEMENTS: Final = {
    "ALTER": "CREATE OR REPLACE a view; a TABLE, a SOURCE, an INSTANCE and a MATERIALIZATION are altered",
    "ANALYZE": "",
    "CACHE": "",
    "CALL": "",
    "CLEAR": "",
    "COMMENT": "",
    "COPY": "",
    "DECLARE": "",
    "EXECUTE": "",
    "GRANT": "",
    "LIST": "",
    "LOAD": "CREATE SOURCE … USING files reads files",
    "LOCK": "",
    "MERGE": ONE,
    "MSCK": "",
    "OPTIMIZE": "`strandline compact` merges what is stored",
    "REFRESH": "views follow by themselves, or by the schedule in their definition",
    "REPAIR": "`strandline verify VIEW --repair` repairs a view",
    "REPLACE": ONE,
    "RESET": "Spark settings stand in strandline.yml",
    "REVOKE": "",
    "SET": "Spark settings stand in strandline.yml",
    "START": "a transaction begins with BEGIN",
    "TRUNCATE": "write DELETE FROM t",
    "UNCACHE": "",
    "UPSERT": ONE,
    "USE": "a location has one set of names",
    "VACUUM": "`strandline gc --apply` collects garbage",
}
"""What is no statement here, and what to do instead, if there is anything."""

KINDS: Final = {
    "CATALOG": "a location has one set of names",
    "DATABASE": "a location has one set of names",
    "SCHEMA": "a location has one set of names",
    "NAMESPACE": "a location has one set of names",
    "EXTERNAL": "CREATE SOURCE … USING files reads files",
    "FUNCTION": "",
    "GLOBAL": "write CREATE MATERIALIZED VIEW",
    "TEMP": "write CREATE TABLE or CREATE MATERIALIZED VIEW",
    "TEMPORARY": "write CREATE TABLE or CREATE MATERIALIZED VIEW",
    "STREAMING": "write CREATE SOURCE or CREATE MATERIALIZED VIEW",
    "VARIABLE": "",
    "VIEW": "say MATERIALIZED VIEW",
}
"""What is not created and dropped here."""

TABLE_CLAUSES: Final = {
    "AS": "CREATE TABLE, then INSERT INTO … SELECT",
    "CLUSTER": "rows are kept in an order of Strandline's own",
    "CLUSTERED": "rows are kept in an order of Strandline's own",
    "COMMENT": "write a comment (-- …) beside the definition",
    "IN": "a table is written by the environment; one FROM SOURCE runs where its source does",
    "LIKE": "write the columns",
    "LOCATION": "a table is kept where the environment is",
    "OPTIONS": "a table has none",
    "PARTITIONED": "rows are kept in an order of Strandline's own",
    "ROW": "rows are kept in a format of Strandline's own",
    "STORED": "rows are kept in a format of Strandline's own",
    "TBLPROPERTIES": "a table has none",
    "USING": "rows are kept in a format of Strandline's own",
    "WITH": "a table has no options",
}
"""What CREATE TABLE has elsewhere."""

SOURCE_TABLE_CLAUSES: Final = {"IN": "a table runs where its source does"}
"""What CREATE TABLE … FROM SOURCE has elsewhere."""

SOURCE_CLAUSES: Final = {
    "COMMENT": "write a comment (-- …) beside the definition",
    "FOR": "CREATE TABLE … FROM SOURCE … makes one of its tables",
    "IN": "IN INSTANCE stands behind the name of the source",
    "PARTITIONED": "rows are kept in an order of Strandline's own",
    "TBLPROPERTIES": "options stand in parentheses, behind the connector",
    "USING": "a connection is an option: (registry_connection = name)",
    "WITH": "options stand in parentheses, behind the connector",
}
"""What CREATE SOURCE has elsewhere."""

VIEW_CLAUSES: Final = {
    "COMMENT": "write a comment (-- …) beside the definition",
    "PARTITIONED": "rows are kept in an order of Strandline's own",
    "CLUSTER": "rows are kept in an order of Strandline's own",
    "IN": "IN INSTANCE stands behind the name of the view",
    "SCHEDULE": "write REFRESH EVERY '1 hour' before AS",
    "TBLPROPERTIES": "a view has none",
    "USING": "rows are kept in a format of Strandline's own",
    "(": "name the columns in the query: SELECT … AS name",
}
"""What CREATE MATERIALIZED VIEW has elsewhere."""

MATERIALIZATION_CLAUSES: Final = {"IN": "IN INSTANCE stands behind the name of the materialization"}
"""What CREATE MATERIALIZATION has elsewhere."""

CHANGE_CLAUSES: Final = {
    "FROM": "read other collections in a subquery",
    "JOIN": "read other collections in a subquery",
    "LIMIT": "choose the rows in WHERE",
    "ORDER": "choose the rows in WHERE",
    "RETURNING": "ask with a query",
    "USING": "read other collections in a subquery",
    ",": "one table is changed at a time; BEGIN … COMMIT makes several statements one",
}
"""What DELETE and UPDATE have elsewhere."""

INSERT_CLAUSES: Final = {
    "BY": "write the columns: INSERT INTO t (a, b) …",
    "DEFAULT": "write the values",
    "IF": "",
    "ON": "a table has no keys",
    "PARTITION": "a table has no partitions",
    "REPLACE": ONE,
    "SET": "write INSERT INTO t (a) VALUES (…)",
}
"""What INSERT has elsewhere."""


def refusal(what: str, instead: str) -> str:
    """Return the sentence that refuses ``what``.

    >>> refusal("TRUNCATE", STATEMENTS["TRUNCATE"])
    'TRUNCATE is not supported; write DELETE FROM t'
    """
    return f"{what} is not supported" + (f"; {instead}" if instead else "")


def unknown(word: str, known: list[str]) -> str:
    """Return the sentence about a word that begins no statement.

    >>> unknown("SELEC", ["SELECT", "DELETE"])
    "no statement begins with 'SELEC'; did you mean SELECT?"
    """
    close = difflib.get_close_matches(word.upper(), known, n=1)
    return f"no statement begins with {word!r}" + (f"; did you mean {close[0]}?" if close else "")
