"""Places: a text says where, configuration says how, and neither shows a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.errors import ConfigError
from strandline.store.blob_kinds.object_location import ObjectLocation
from strandline.store.secret import Secret, revealed
from strandline.wiring.locations import (
    InBucket,
    InFiles,
    InMemory,
    InObjectStore,
    InPostgres,
    InSQLite,
    States,
    consensus_of,
    location_of,
)

BUCKET = InBucket(ObjectLocation("s3://bucket/prefix", {}))


def test_a_location_is_files_memory_or_a_bucket(tmp_path: Path) -> None:
    """Damage: collections are stored where no operator expects them."""
    assert location_of(str(tmp_path), {}) == location_of(tmp_path.as_uri(), {}) == InFiles(tmp_path)
    assert location_of("file:///with%20space", {}) == InFiles(Path("/with space"))
    assert location_of("memory://", {}) == InMemory()
    assert location_of("s3://bucket/prefix/", {}) == BUCKET
    with pytest.raises(ConfigError, match="'gopher'"):
        location_of("gopher://hole", {})


def test_what_goes_without_saying_goes_with_the_location() -> None:
    """Damage: a bucket's states are kept on the laptop that made it."""
    assert consensus_of(None, InMemory()) == States()
    assert consensus_of(None, InFiles(Path("/d"))) == InSQLite(Path("/d/consensus.db"))
    assert consensus_of(None, BUCKET) == InObjectStore(BUCKET)


def test_a_consensus_may_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: states go into a database or a schema that was not meant."""
    assert consensus_of("sqlite:///d/c%20d.db", BUCKET) == InSQLite(Path("/d/c d.db"))
    assert consensus_of("object-store", BUCKET) == InObjectStore(BUCKET)
    assert consensus_of("postgresql://ann@host/db", BUCKET) == InPostgres(
        Secret("postgresql://ann@host/db"), "host/db", "strandline"
    )
    spaced = "postgresql://host/db?options=-cDateStyle%3DISO%20-cTimeZone%3DUTC"
    assert consensus_of(spaced, BUCKET) == InPostgres(Secret(spaced), "host/db", "strandline")  # libpq reads no plus
    monkeypatch.setenv("CONSENSUS", "postgresql://ann:pw@host/db?sslmode=require&schema=My+Views")
    found = consensus_of("env:CONSENSUS", InMemory())
    assert found == InPostgres(Secret("postgresql://ann:pw@host/db?sslmode=require"), "host/db", "My Views")
    assert "pw" not in repr(found)
    for text, location in (("object-store", InMemory()), ("zookeeper://z", BUCKET), ("memory://", BUCKET)):
        with pytest.raises(ConfigError):
            consensus_of(text, location)


@pytest.mark.parametrize(
    "text",
    ["s3://key:hunter2@bucket", "s3://bucket/p?secret_access_key=hunter2", "s3://bucket#hunter2", "s4://x:hunter2@b"],
)
def test_a_location_takes_no_secret_and_shows_none(text: str) -> None:
    """Damage: a password stands in the catalog, in logs, and on the screen."""
    with pytest.raises(ConfigError) as raised:
        location_of(text, {})
    assert "hunter2" not in str(raised.value)


def test_a_consensus_that_is_not_known_is_not_shown() -> None:
    """Damage: one wrong letter in a scheme prints the password."""
    for text in ("postgress://ann:hunter2@host/db", "postgresql://ann:hunter2@[host/db"):
        with pytest.raises(ConfigError) as raised:
            consensus_of(text, InMemory())
        assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("sign", "/?#")
@pytest.mark.parametrize("password", ["hunter2{}x", "{}hunter2", "5432{}hunter2"])
def test_a_sign_in_a_password_shows_no_part_of_it(sign: str, password: str) -> None:
    """Damage: a password with a slash is taken for a host, and stands in every message about the store."""
    with pytest.raises(ConfigError, match="%2F") as raised:
        consensus_of(f"postgresql://ann:{password.format(sign)}@host/db", InMemory())
    assert "hunter2" not in str(raised.value)


def test_hosts_of_every_form_are_read() -> None:
    """Damage: a server that libpq finds is refused."""
    for hosts in ("", "a:1,b:2", "[::1]:5432", "[::1]", "%2Frun%2Fpostgresql", "a,b"):
        found = consensus_of(f"postgresql://ann:p%2Fw@{hosts}/db?options=-c%20a@b", InMemory())
        assert found.server == f"{hosts or 'local'}/db"


@pytest.mark.parametrize("path", ["//data/strand", "///data/a#b", "///data/a?b=c", "///data/a?"])
def test_no_part_of_a_path_is_left_out(path: str) -> None:
    """Damage: collections are kept in another directory than the one that was named, which may be another project's."""
    with pytest.raises(ConfigError, match="third slash"):
        location_of(f"file:{path}", {})
    with pytest.raises(ConfigError, match="third slash"):
        consensus_of(f"sqlite:{path}", InMemory())
    assert location_of("file://localhost/data", {}) == location_of("file:///data", {})
    assert location_of("/data/a#b?", {}) == location_of("file:///data/a%23b%3F", {}) == InFiles(Path("/data/a#b?"))


def test_a_secret_is_a_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Damage: credentials are committed with the project."""
    monkeypatch.setenv("OUR_KEY", "hunter2")
    (tmp_path / "token").write_text("hunter3\n")
    storage = {"secret_access_key": "env:OUR_KEY", "session_token": f"file:{tmp_path / 'token'}", "region": "eu-west-1"}
    location = location_of("s3://bucket", storage)
    assert isinstance(location, InBucket)
    assert revealed(location.at.options) == {
        "secret_access_key": "hunter2",
        "session_token": "hunter3",
        "region": "eu-west-1",
    }
    assert "hunter" not in f"{location!r} {location.at.options} {location.at.options['session_token']!s:>9}"
    for name in ("secret_access_key", "session_token"):
        with pytest.raises(ConfigError, match=name) as raised:
            location_of("s3://bucket", {name: "hunter2"})
        assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigError, match="OUR_OTHER_KEY"):
        location_of("s3://bucket", {"secret_access_key": "env:OUR_OTHER_KEY"})


def test_options_of_an_object_store_need_one() -> None:
    """Damage: the operator believes that a bucket is used, and all is on one disk."""
    with pytest.raises(ConfigError, match="storage"):
        location_of("memory://", {"region": "eu-west-1"})
