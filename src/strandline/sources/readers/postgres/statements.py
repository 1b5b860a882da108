"""The statements that the reader sends to PostgreSQL, and what their answers mean.

They name no object but by parameters, or by `psycopg.sql`'s own quoting.  What a server of another version lacks
(`rowfilter`, `invalidation_reason`) is read out of a row's JSON, where it is then absent; a catalog that it lacks is
left out (`_SCHEMAS`).

Source: PostgreSQL's manual, "System Catalogs", "Replication Management Functions".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, LiteralString, cast

from psycopg import sql

from strandline.errors import SourceError, Unavailable
from strandline.problem import Problem, Stopped, Way
from strandline.sources.readers.postgres.pgoutput import Identity, lsn_number
from strandline.sources.readers.postgres.server import (
    Name,
    Published,
    Shape,
    SlotInUse,
    SlotStanding,
    Standing,
    UpstreamColumn,
    UpstreamTable,
)

OLD: Final = Problem(
    "postgres-server-old",
    "{place} has version {version}: a source needs {least} or later",
    Stopped.SOURCE,
    (Way("upgrade the server, or correct the source's connection"),),
)
DENIED: Final = Problem(
    "postgres-denied",
    "{server} does not let the source's role read {needed}: {answer}",
    Stopped.SOURCE,
    (Way("give the role REPLICATION, and SELECT on the tables, and BYPASSRLS if they have row security"),),
)
NOT_THERE: Final = Problem(
    "postgres-not-there",
    "{server} lacks what the source needs for {needed}: {answer}",
    Stopped.SOURCE,
    (Way("create there what it names"),),
)
MISSED: Final = Problem(
    "postgres-changes-missed",
    "{server} sends no more for {needed}: {answer}, or did not for a while: what changed meanwhile cannot be read",
    Stopped.SOURCE,
    (Way("define the source anew, as `strandline anew` does"),),
)
_PUBLISHED: Final = """
    pg_publication AS pub
        JOIN (SELECT * FROM pg_publication_tables WHERE pubname = {publication} {only}) AS p ON p.pubname = pub.pubname
        JOIN pg_namespace AS n ON n.nspname = p.schemaname
        JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename
        CROSS JOIN LATERAL (
            WITH RECURSIVE upwards (oid, path) AS (
                SELECT c.oid, format('publication %s:%s', pub.oid, pub.xmin)
                UNION ALL
                SELECT i.inhparent, format('%s partition of %s:%s', path, i.inhparent, i.xmin)
                    FROM upwards JOIN pg_class AS part ON part.oid = upwards.oid AND part.relispartition
                        JOIN pg_inherits AS i ON i.inhrelid = part.oid
            )
            SELECT jsonb_agg(entry) AS entries, bool_or(partial) AS partial FROM (
                SELECT format('%s all, table %s', path, c.oid), false FROM upwards
                    WHERE pub.puballtables AND upwards.oid = c.oid
                UNION ALL
                SELECT format('%s table %s:%s', path, r.oid, r.xmin),
                        to_jsonb(r)->>'prqual' IS NOT NULL OR to_jsonb(r)->>'prattrs' IS NOT NULL
                    FROM upwards JOIN pg_publication_rel AS r ON r.prrelid = upwards.oid AND r.prpubid = pub.oid
                {schemas}
            ) AS found (entry, partial) HAVING count(*) > 0) AS e
        CROSS JOIN LATERAL (
            WITH RECURSIVE downwards (oid) AS (
                SELECT c.oid
                UNION ALL
                SELECT i.inhrelid FROM downwards JOIN pg_class AS whole ON whole.oid = downwards.oid
                    AND whole.relkind = 'p' JOIN pg_inherits AS i ON i.inhparent = whole.oid
            ), kept AS (
                SELECT k.oid, k.relnamespace, k.relname, k.relfilenode, k.oid <> c.oid AND k.relkind <> 'p' AS part,
                    (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_index AS x JOIN pg_attribute AS a
                        ON a.attrelid = x.indrelid AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1])
                        WHERE c.relkind = 'p' AND x.indrelid = k.oid AND x.indisvalid AND x.indimmediate
                            AND CASE k.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident
                                ELSE false END) AS key
                    FROM downwards JOIN pg_class AS k ON k.oid = downwards.oid
            )
            SELECT hashtextextended(string_agg(kept.relfilenode::text, ' ' ORDER BY kept.oid), 0) AS file,
                jsonb_agg(kept.oid::bigint) FILTER (WHERE kept.part) AS parts,
                min(format('%I.%I', at.nspname, kept.relname)) FILTER (WHERE kept.part AND kept.key IS NOT NULL
                    AND (c.relreplident = 'f' OR kept.key <> (SELECT key FROM kept WHERE oid = c.oid))) AS unlike,
                (SELECT jsonb_agg(DISTINCT own.attname::text) FROM pg_attribute AS own
                    WHERE own.atthasmissing AND own.attrelid IN (SELECT oid FROM kept)) AS filled, c.relnatts AS highest
                FROM kept JOIN pg_namespace AS at ON at.oid = kept.relnamespace) AS rows
        CROSS JOIN LATERAL (
            SELECT jsonb_object_agg(a.attname, jsonb_build_array(a.attnum, a.xmin::text::bigint)) AS columns
                FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS shape
"""
"""How a publication has its tables: each row of the catalog by which it does, by its number and version (``xmin``).

And how each table is kept: where its rows are, or those of its partitions, and its columns (`server.Shape`).  A default
that a column was added with may be noted of the partitions alone (``atthasmissing``).  A
partition has a replica identity of its own, by which its changes say what a row was, though they are sent as the
table's (``unlike``: one whose key is another).  ``only`` is `_ONLY`, or nothing: all tables.

The view pg_publication_tables shows what is committed now, the other catalogs what the statement's snapshot sees.  A
table that joined since that snapshot has no entry yet, and is left out.
Freezing keeps ``xmin``.  The type of a table's rows gets another version with each rename and move of the table.
"""
_ONLY: Final = "AND (schemaname, tablename) IN (SELECT * FROM unnest({schemas}::name[], {names}::name[]))"
"""The names of tables; what is found out of a table costs, so the others are left out first."""
_SCHEMAS: Final = """
    UNION ALL
    SELECT format('%s schema %s:%s, table %s:%s', path, s.oid, s.xmin, c.oid, type.xmin), false
        FROM upwards JOIN pg_class AS moved ON moved.oid = upwards.oid JOIN pg_type AS type ON type.oid = moved.reltype
            JOIN pg_publication_namespace AS s ON s.pnnspid = moved.relnamespace AND s.pnpubid = pub.oid
"""
VERSION_MIN: Final = 130000
"""The first version of a server whose catalogs and functions have what is asked here."""
_SCHEMAS_SINCE: Final = 150000
"""The first version of a server whose publications may have all tables of a schema."""
_STANDING: Final = """
    SELECT (SELECT system_identifier::text FROM pg_control_system()), current_database(),
        current_setting('wal_level'),
        CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn()::text END,
        (SELECT to_jsonb(slot) FROM pg_replication_slots AS slot WHERE slot_name = {slot}),
        (SELECT jsonb_build_object('insert', pubinsert, 'update', pubupdate, 'delete', pubdelete,
            'truncate', pubtruncate) FROM pg_publication WHERE pubname = {publication}),
        (SELECT jsonb_agg(jsonb_build_array(n.nspname, c.relname, e.entries, e.partial, to_jsonb(rows), shape.columns))
            FROM {published})
"""
CREATE_SLOT: Final = """
    SELECT pg_create_logical_replication_slot(%(slot)s, 'pgoutput')
        WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s)
"""
DROP_SLOT: Final = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %(slot)s"
ADVANCE: Final = """
    SELECT pg_replication_slot_advance(slot_name, least(%(position)s::pg_lsn, pg_current_wal_flush_lsn()))
        FROM pg_replication_slots WHERE slot_name = %(slot)s
            AND confirmed_flush_lsn < least(%(position)s::pg_lsn, pg_current_wal_flush_lsn())
"""
COPY_SLOT: Final = "SELECT pg_copy_logical_replication_slot(%(slot)s, %(own)s, true)"
"""Make a temporary slot of our own at the position of the source's slot."""
CONFIRMED: Final = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %(slot)s"
PEEK: Final = """
    SELECT data FROM pg_logical_slot_peek_binary_changes(%(slot)s, %(upto)s::pg_lsn, %(changes)s::int,
        'proto_version', '1', 'publication_names', %(publication)s)
"""
CHANGES: Final = "strandline_changes"
"""The cursor of `PEEK`."""
FETCH: Final = "FETCH FORWARD 1000 FROM strandline_changes"
"""The time limit of a statement counts for so many messages, also while this process decodes them."""
LOCK: Final = "SELECT pg_advisory_xact_lock(%(number)s)"
ENCODED: Final = "SELECT set_config('client_encoding', %(encoding)s, true)"
LIMITS: Final = """
    SELECT set_config('lock_timeout', %(lock_ms)s, true), set_config('statement_timeout', %(statement_ms)s, true)
"""
_TABLES: Final = """
    SELECT n.nspname, c.relname, c.relreplident, c.relkind = 'p', coalesce(to_jsonb(p)->>'rowfilter', ''),
        c.reltuples::bigint, c.oid::bigint, e.entries, e.partial, to_jsonb(rows), shape.columns,
        (SELECT jsonb_agg(jsonb_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                format_type(a.atttypid, a.atttypmod), coalesce(a.attnum = ANY (i.keys), false), type.typdelim)
                ORDER BY a.attnum)
            FROM pg_attribute AS a JOIN pg_type AS type ON type.oid = a.atttypid
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = ''
                AND (to_jsonb(p)->'attnames' IS NULL OR to_jsonb(p)->'attnames' ? a.attname::text))
    FROM {published}
        LEFT JOIN LATERAL (
            SELECT (x.indkey::int2[])[0:x.indnkeyatts - 1] AS keys FROM pg_index AS x
                WHERE x.indrelid = c.oid AND x.indisvalid AND x.indimmediate
                    AND CASE c.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident
                        ELSE false END) AS i ON true
    ORDER BY 1, 2
"""
"""An array type, and a domain over one, has the delimiter (``typdelim``) of its elements."""
UNSETTLED: Final = """
    SELECT count(*) FROM pg_snapshot_xip(pg_current_snapshot()) AS running
        WHERE pg_visible_in_snapshot(running, %(snapshot)s::pg_snapshot)
"""
"""How many transactions a snapshot counts as committed, whose end the server has not noted everywhere yet."""

RUNNING: Final = """
    SELECT who, now() - since FROM (
        SELECT 'that of session ' || pid, xact_start FROM pg_stat_activity
            WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
        UNION ALL
        SELECT format('the prepared one %L, which COMMIT PREPARED or ROLLBACK PREPARED ends', gid), prepared
            FROM pg_prepared_xacts
    ) AS running (who, since) ORDER BY since LIMIT 1
"""
"""Which transaction runs for the longest time, in words: a prepared one has no session."""
BEGIN_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def in_order(snapshot: str) -> str:
    """Return the text of a snapshot that the server reads again.

    The least transaction that runs may lie beyond the greatest that committed, if those between were rolled back.  The
    server writes such a snapshot, but does not read it.  All transactions before the first number have ended.

    >>> in_order("887:880:"), in_order("880:887:882,885")
    ('887:887:', '880:887:882,885')
    """
    least, end, running = snapshot.split(":")
    return f"{least}:{max(int(least), int(end))}:{running}"


def check_version(version: int, place: str) -> None:
    """Raise `SourceError` if a server is too old to be asked."""
    if version < VERSION_MIN:
        raise SourceError(OLD.said(place=place, version=version // 10_000, least=VERSION_MIN // 10_000))


def standing_query(slot: str, publication: str, only: Collection[Name], version: int) -> sql.Composed:
    """Return the statement whose answer `standing` takes, for a server of a version."""
    return _asked(_STANDING, publication, only, version, slot=sql.Literal(slot))


def tables_query(publication: str, only: Collection[Name] | None, version: int) -> sql.Composed:
    """Return the statement whose answer `tables` takes.  It has no parameters: a session for replication takes none."""
    return _asked(_TABLES, publication, only, version)


def _asked(
    text: LiteralString, publication: str, only: Collection[Name] | None, version: int, **more: sql.Literal
) -> sql.Composed:
    some = sql.Composed([])
    if only is not None:
        some = sql.SQL(_ONLY).format(schemas=[schema for schema, _ in only], names=[table for _, table in only])
    schemas = sql.SQL(_SCHEMAS if version >= _SCHEMAS_SINCE else "")
    published = sql.SQL(_PUBLISHED).format(publication=sql.Literal(publication), only=some, schemas=schemas)
    return sql.SQL(text).format(published=published, publication=sql.Literal(publication), **more)


def standing(row: tuple[Any, ...], place: str) -> Standing:
    """Return what the answer to `standing_query` means.  Raises `Unavailable`: the server is a standby."""
    system, database, wal_level, flushed, slot, kinds, published = row
    if flushed is None:
        raise Unavailable(f"{place} is a standby: a source reads from the primary")
    return Standing(
        system,
        database,
        wal_level,
        lsn_number(flushed),
        None if slot is None else _slot(slot),
        None
        if kinds is None
        else {
            (schema, name): _published(entries, partial, kept, columns)
            for schema, name, entries, partial, kept, columns in published or ()
        },
        tuple(kind for kind, there in sorted((kinds or {}).items()) if not there),
    )


def _published(
    entries: Iterable[str], partial: bool, kept: Mapping[str, Any], columns: Mapping[str, tuple[int, int]] | None
) -> Published:
    versions = {name: (number, version) for name, (number, version) in (columns or {}).items()}
    parts, filled = frozenset(kept["parts"] or ()), frozenset(kept["filled"] or ())
    shape = Shape(kept["file"], versions, parts, filled, kept["highest"])
    return Published(frozenset(entries), partial, shape, kept["unlike"] or "")


def _slot(found: Mapping[str, Any]) -> SlotStanding:
    lost = found.get("invalidation_reason") or ""
    if not lost and found.get("wal_status") == "lost":
        lost = "its log was removed (max_slot_wal_keep_size)"
    confirmed = found.get("confirmed_flush_lsn")
    return SlotStanding(
        found.get("plugin") or "", found.get("database") or "", lsn_number(confirmed) if confirmed else 0, lost
    )


def tables(rows: Iterable[tuple[Any, ...]]) -> tuple[UpstreamTable, ...]:
    """Return what the answer to `tables_query` means."""
    return tuple(
        UpstreamTable(
            schema,
            name,
            Identity(identity.decode() if isinstance(identity, bytes) else identity),
            tuple(UpstreamColumn(*column) for column in columns or ()),
            _published(entries, partial, kept, versions),
            where,
            partitioned,
            about if about >= 0 else None,
            oid,
        )
        for schema, name, identity, partitioned, where, about, oid, entries, partial, kept, versions, columns in rows
    )


def copy(table: UpstreamTable, columns: Iterable[str], encoding: str) -> sql.Composed:
    r"""Return the statement that copies out the rows of a table that its publication has, in an encoding.

    >>> table = UpstreamTable("s", 'a"b', Identity.FULL, (), Published(frozenset()), "(id > 3)")
    >>> copy(table, ["id"], "UTF8").as_string()
    'COPY (SELECT "id" FROM ONLY "s"."a""b" WHERE (id > 3)) TO STDOUT (FORMAT csv, ENCODING \'UTF8\')'
    """
    only = "" if table.partitioned else "ONLY "
    where = f" WHERE {table.where}" if table.where else ""  # the server's own text of the publication's condition
    return sql.SQL(
        "COPY (SELECT {columns} FROM {only}{table}{where}) TO STDOUT (FORMAT csv, ENCODING {encoding})"
    ).format(
        encoding=sql.Literal(encoding),
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
            return SourceError(DENIED.said(server=place, needed=what, answer=why))
        case "42P01" | "3F000":
            return SourceError(NOT_THERE.said(server=place, needed=what, answer=why))
        case "42704":
            return SourceError(MISSED.said(server=place, needed=what, answer=why))
        case "55006":
            return SlotInUse(f"{place}: {what}: another session has the slot: {why}")
        case "55P03":
            return Unavailable(f"{place}: {what}: another reader of this source is at it")
        case "53400":
            return Unavailable(f"{place}: {what}: {why}; raise max_replication_slots and max_wal_senders")
        case _:
            return Unavailable(f"{place}: {what}: {why}")
