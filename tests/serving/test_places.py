"""A process serves where it can, and says where."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.client import Environment
from strandline.errors import ConfigError
from strandline.serving import serve, server
from strandline.serving.server import FlightSql


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a location, beside a directory for temporary files."""
    with tempfile.TemporaryDirectory(prefix="s-") as short:  # pytest's own have long names
        monkeypatch.setattr(server.tempfile, "gettempdir", lambda: f"{short}/tmp")
        yield Path(short, "data")
        assert not list(Path(short, "tmp").rglob("*.sock"))


def served_at(root: Path) -> str:
    """Serve, and return where, as other processes learn it."""
    env = cast("Environment", SimpleNamespace(directory=root))
    with serve(env, None, lambda: None) as serving:
        found = server.published(root)
        assert found is not None
        assert tuple(found.flight_sql) == serving.flight_sql
    assert server.published(root) is None
    return serving.flight_sql[0].removeprefix("grpc+unix://")


def test_a_location_has_a_socket(root: Path) -> None:
    """Damage: a client looks for the process in vain, or connects to one that has ended."""
    assert served_at(root) == str(root / "serving" / "flight.sock")
    assert served_at(root) == str(root / "serving" / "flight.sock")


def test_who_asks_learns_where_the_console_is(root: Path) -> None:
    """Damage: `status --json` names no console although there is one; or one that has ended."""
    env = cast("Environment", SimpleNamespace(directory=root))
    with serve(env, None, lambda: None) as serving:
        assert (serving.desk.served or {})["http"] is None
        serving.announce("http://127.0.0.1:40123")
        told = {"flight_sql": list(serving.flight_sql), "http": "http://127.0.0.1:40123"}
        found = server.published(root)
        assert found is not None
        assert found.told == serving.desk.served == told
    assert server.published(root) is None


def test_a_path_that_is_too_long_for_a_socket_has_one_elsewhere(root: Path) -> None:
    """Damage: `run` refuses a project because its directory lies deep."""
    deep = root.joinpath(*["a directory"] * 12)
    assert served_at(deep).startswith(f"{root.parent}/tmp/strandline-serving-")


def test_a_file_system_without_sockets_has_one_elsewhere(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: `run` refuses a location on a network file system."""

    class NoSocket(FlightSql):
        def __init__(self, desk: Any, place: str, **how: Any) -> None:
            if str(root) in place:
                raise ConfigError("no socket can be made there")
            super().__init__(desk, place, **how)

    monkeypatch.setattr(server, "FlightSql", NoSocket)
    assert served_at(root).startswith(f"{root.parent}/tmp/strandline-serving-")


def test_a_directory_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: another user of the machine answers the questions that a program asks."""
    (root / "serving").mkdir(parents=True)
    monkeypatch.setattr(server.os, "getuid", lambda: 12345)
    with pytest.raises(ConfigError, match="is another user's, so nothing is served there: remove it"):
        served_at(root)
