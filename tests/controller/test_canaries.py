"""No secret of a configuration is shown or stored, whatever is asked of an environment."""

from __future__ import annotations

import itertools

import psycopg
import pytest

from postgres_server import PostgresServer
from s3_server import S3Server
from strandline.cli import main
from strandline.controller.defining.project.files import load
from strandline.errors import StrandlineError
from strandline.store.blob_kinds.objects import ObjectBlob
from strandline.wiring.locations import InBucket, location_of

CANARY = "canary-4711"
NUMBERS = itertools.count()
COMMANDS = (
    ["run", "--once"],
    ["status"],
    ["status", "--json"],
    ["query", "SELECT * FROM t"],
    ["query", "SELECT 1/0 AS x FROM t"],
    ["query", "SELECT * FROM nothing"],
    ["explain", "v"],
    ["inspect", "shard", "t"],
    ["fsck"],
)


@pytest.mark.server
@pytest.mark.spark
def test_no_command_shows_or_stores_the_password_of_the_consensus(
    postgres_server: PostgresServer, spark, tmp_path, capsys, monkeypatch
):
    """Damage: the password of the database stands on the screen, in logs, or in the location itself."""
    schema = f"canary_{next(NUMBERS)}"
    (tmp_path / "url").write_text(f"{postgres_server.url}?schema={schema}&password={CANARY}")
    (tmp_path / "strandline.yml").write_text(
        "location: data\nconsensus: file:url\nendpoints: {w: {driver: duckdb, path: w.duckdb}}\n"
    )
    for directory, text in (
        ("tables", "CREATE TABLE t (k INT)"),
        ("views", "CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS n FROM t GROUP BY k"),
        ("materializations", "CREATE MATERIALIZATION m INTO w AS v"),
    ):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "one.sql").write_text(text)
    said = repr(load(tmp_path))
    done = [main([*command, "--project", str(tmp_path)], spark=spark) for command in COMMANDS]
    assert done[:4] == [0] * 4
    (tmp_path / "strandline.yml").write_text("location: data\n")  # the twin's message names the consensus
    assert main(["status", "--project", str(tmp_path)], spark=spark) == 1
    (tmp_path / "url").write_text(f"{postgres_server.url}nothing?schema={schema}&password={CANARY}")
    (tmp_path / "strandline.yml").write_text(f"location: data\nconsensus: {(tmp_path / 'url').read_text()}\n")
    assert main(["status", "--project", str(tmp_path)], spark=spark) == 1
    said += repr(load(tmp_path)) + "".join(capsys.readouterr())
    assert f"schema {schema}" in said
    assert CANARY not in said
    (tmp_path / "url").unlink()
    (tmp_path / "strandline.yml").unlink()
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    with psycopg.connect(postgres_server.url) as connection:
        stored += b"".join(row[0] for row in connection.execute(f'SELECT data FROM "{schema}".versions').fetchall())
    assert f"schema {schema}".encode() in stored, "the mark of the location"
    assert CANARY.encode() not in stored


@pytest.mark.server
def test_no_error_of_an_object_store_shows_its_keys(s3_server: S3Server, monkeypatch):
    """Damage: one wrong letter in a bucket's name prints the keys of all."""
    monkeypatch.setenv("CANARY", CANARY)
    storage = {**s3_server.storage, "secret_access_key": "env:CANARY", "session_token": "env:CANARY"}
    shown = []
    for bucket, more in (("nosuchbucket", {}), ("nosuchbucket", {"region": "x y"}), (s3_server.bucket, {"nokey": "1"})):
        with pytest.raises(StrandlineError) as raised:
            location = location_of(f"s3://{bucket}/canary", {**storage, **more})
            assert isinstance(location, InBucket)
            shown += [repr(location), str(location.at.options)]
            ObjectBlob(location.at)
        shown += [str(raised.value), repr(raised.value)]
    assert not [text for text in shown if CANARY in text]
