"""Databases of PostgreSQL for tests and benchmarks of sources: statements, and what a peer reads by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from strandline.options import understood
from strandline.sources.readers.postgres.options import PostgresOptions
from strandline.sources.readers.postgres.psycopg_server import parameters


def session(options: Mapping[str, str]) -> psycopg.Connection[tuple[Any, ...]]:
    """Return a session of the database that a source's options name; each statement is a transaction."""
    given = understood("a database", PostgresOptions, {"publication": "none", **options})
    how = parameters(given)
    ours = {"application_name": "strandline tests", "options": f"{how['options']} -c search_path=public"}
    return psycopg.connect(**{**how, **ours}, autocommit=True)


def run(options: Mapping[str, str], *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; return what the last one answers."""
    found: list[tuple[Any, ...]] = []
    with session(options) as connection:
        connection.execute("SET statement_timeout = 0")
        for statement in statements:
            cursor = connection.execute(statement.encode())
            found = cursor.fetchall() if cursor.description else []
    return found


def copy_out(options: Mapping[str, str], table: str, path: Path) -> None:
    """Write a table into a file of CSV."""
    with (
        session(options) as connection,
        path.open("wb") as file,
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} TO STDOUT (FORMAT csv)".encode()) as rows,
    ):
        for row in rows:
            file.write(row)


def peek(options: Mapping[str, str], slot: str, publication: str) -> int:
    """Fetch all that a slot has, and throw it away; return how many bytes it was."""
    statement = (
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL, "  # noqa: S608 - names of ours
        f"'proto_version', '1', 'publication_names', '{publication}')"
    )
    size = 0
    with session(options) as connection, connection.transaction(), connection.cursor("peer") as cursor:
        connection.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(statement.encode(), binary=True)
        while rows := cursor.fetchmany(5_000):
            size += sum(len(data) for (data,) in rows)
    return size
