"""The statements that the reader sends to PostgreSQL, and what their answers mean.

They name no object but by parameters, or by `psycopg.sql`'s own quoting.  What a server of another version lacks
(`rowfilter`, `invalidation_reason`) is read out of a row's JSON, where it is then absent.

Source: PostgreSQL's manual, "System Catalogs", "Replication Management Functions".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from psycopg import sql

from strandline.errors import SourceError, Unavailable
from strandline.sources.readers.postgres.pgoutput import Identity, lsn_number
from strandline.sources.readers.postgres.server import SlotStanding, Standing, UpstreamColumn, UpstreamTable

STANDING: Final = """
    SELECT (SELECT system_identifier::text FROM pg_control_system()), current_database(),
        current_setting('wal_level'),
        CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn()::text END,
        (SELECT to_jsonb(slot) FROM pg_replication_slots AS slot WHERE slot_name = %(slot)s),
        (SELECT jsonb_build_object('insert', pubinsert, 'update', pubupdate, 'delete', pubdelete,
            'truncate', pubtruncate) FROM pg_publication WHERE pubname = %(publication)s),
        (SELECT jsonb_agg(jsonb_build_array(schemaname, tablename))
            FROM pg_publication_tables WHERE pubname = %(publication)s)
"""
CREATE_SLOT: Final = """
    SELECT pg_create_logical_replication_slot(%(slot)s, 'pgoutput')
        WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s)
"""
ADVANCE: Final = """
    SELECT pg_replication_slot_advance(slot_name, least(%(position)s::pg_lsn, pg_current_wal_flush_lsn()))
        FROM pg_replication_slots WHERE slot_name = %(slot)s
            AND confirmed_flush_lsn < least(%(position)s::pg_lsn, pg_current_wal_flush_lsn())
"""
PEEK: Final = """
    SELECT data FROM pg_logical_slot_peek_binary_changes(%(slot)s, %(upto)s::pg_lsn, %(changes)s::int,
        'proto_version', '1', 'publication_names', %(publication)s)
"""
LOCK: Final = "SELECT pg_advisory_xact_lock(%(number)s)"
LIMITS: Final = """
    SELECT set_config('lock_timeout', %(lock_ms)s, true), set_config('statement_timeout', %(statement_ms)s, true)
"""
TABLES: Final = """
    SELECT n.nspname, c.relname, c.relreplident, c.relkind = 'p', coalesce(to_jsonb(p)->>'rowfilter', ''),
        c.reltuples::bigint, c.oid::bigint,
        (SELECT jsonb_agg(jsonb_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                format_type(a.atttypid, a.atttypmod), coalesce(a.attnum = ANY (i.keys), false)) ORDER BY a.attnum)
            FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = ''
                AND (to_jsonb(p)->'attnames' IS NULL OR to_jsonb(p)->'attnames' ? a.attname::text))
    FROM pg_publication_tables AS p
        JOIN pg_namespace AS n ON n.nspname = p.schemaname
        JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename
        LEFT JOIN LATERAL (
            SELECT (x.indkey::int2[])[0:x.indnkeyatts - 1] AS keys FROM pg_index AS x
                WHERE x.indrelid = c.oid AND x.indisvalid AND x.indimmediate
                    AND CASE c.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident
                        ELSE false END) AS i ON true
    WHERE p.pubname = {publication} ORDER BY 1, 2
"""
"""Takes its one name as a literal, because a session for replication takes no parameters."""
UNSETTLED: Final = """
    SELECT count(*) FROM pg_snapshot_xip(pg_current_snapshot()) AS running
        WHERE pg_visible_in_snapshot(running, %(snapshot)s::pg_snapshot)
"""
"""How many transactions a snapshot counts as committed, whose end the server has not noted everywhere yet."""
RUNNING: Final = """
    SELECT pid, now() - xact_start FROM pg_stat_activity
        WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1
"""
BEGIN_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def standing(row: tuple[Any, ...], place: str) -> Standing:
    """Return what the answer to `STANDING` means.  Raises `Unavailable`: the server is a standby."""
    system, database, wal_level, flushed, slot, kinds, published = row
    if flushed is None:
        raise Unavailable(f"{place} is a standby: a source reads from the primary")
    return Standing(
        system,
        database,
        wal_level,
        lsn_number(flushed),
        None if slot is None else _slot(slot),
        None if kinds is None else frozenset((schema, name) for schema, name in published or ()),
        tuple(kind for kind, there in sorted((kinds or {}).items()) if not there),
    )


def _slot(found: Mapping[str, Any]) -> SlotStanding:
    lost = found.get("invalidation_reason") or ""
    if not lost and found.get("wal_status") == "lost":
        lost = "its log was removed (max_slot_wal_keep_size)"
    confirmed = found.get("confirmed_flush_lsn")
    return SlotStanding(
        found.get("plugin") or "", found.get("database") or "", lsn_number(confirmed) if confirmed else 0, lost
    )


def tables(rows: Iterable[tuple[Any, ...]]) -> tuple[UpstreamTable, ...]:
    """Return what the answer to `TABLES` means."""
    return tuple(
        UpstreamTable(
            schema,
            name,
            Identity(identity.decode() if isinstance(identity, bytes) else identity),
            tuple(UpstreamColumn(*column) for column in columns or ()),
            where,
            partitioned,
            about if about >= 0 else None,
            oid,
        )
        for schema, name, identity, partitioned, where, about, oid, columns in rows
    )


def copy(table: UpstreamTable, columns: Iterable[str]) -> sql.Composed:
    """Return the statement that copies out the rows of a table that its publication has.

    >>> table = UpstreamTable("s", 'a"b', Identity.FULL, (), "(id > 3)")
    >>> copy(table, ["id"]).as_string()
    'COPY (SELECT "id" FROM ONLY "s"."a""b" WHERE (id > 3)) TO STDOUT (FORMAT csv)'
    """
    only = "" if table.partitioned else "ONLY "
    where = f" WHERE {table.where}" if table.where else ""  # the server's own text of the publication's condition
    return sql.SQL("COPY (SELECT {columns} FROM {only}{table}{where}) TO STDOUT (FORMAT csv)").format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        only=sql.SQL(only),
        table=sql.Identifier(table.schema, table.name),
        where=sql.SQL(cast("Any", where)),
    )


def refused(place: str, what: str, state: str, why: str) -> SourceError | Unavailable:
    """Return the error for a statement that failed: definite only where asking again cannot help.

    ``state``: the SQLSTATE, or empty if the connection failed; ``why``: the server's sentence.
    """
    match state:
        case "42501":
            return SourceError(f"{place}: {what}: {why}; the role needs REPLICATION, and SELECT on the tables")
        case "42P01" | "3F000":
            return SourceError(f"{place}: {what}: {why}")
        case "55006":
            return Unavailable(f"{place}: {what}: another session has the slot: {why}")
        case "55P03":
            return Unavailable(f"{place}: {what}: another reader of this source is at it")
        case "53400":
            return Unavailable(f"{place}: {what}: {why}; raise max_replication_slots and max_wal_senders")
        case _:
            return Unavailable(f"{place}: {what}: {why}")
