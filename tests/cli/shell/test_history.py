"""History is the user's own, and no password is in it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from strandline.cli.shell import prompting
from strandline.cli.shell.prompting import KEPT_MAX, KeptHistory, may_be_kept

SECRETS = [
    "CREATE CONNECTION pg TO postgres (host = 'db', password = 'hunter2')",
    "create connection k to kafka (SASL plain, PassWord 'hunter2')",
    "CREATE SOURCE s FROM webhook (token 'hunter2')",
    "ALTER MATERIALIZATION m SET (secret_access_key = hunter2, `aws.secretKey` 'hunter2')",
    "CREATE CONNECTION pg TO postgres (uri 'postgresql://me:hunter2@db/x')",
    "UPDATE users SET password = 'hunter2' WHERE id = 1",
    "CREATE CONNECTION pg TO postgres (password = 'hunter2",
    "CREATE CONNECTION pg TO postgres (password = 'env:HUNTER')",
]
KEPT = [
    "SELECT * FROM orders WHERE city = 'Delft'",
    "SELECT password FROM users",
    "SELECT count(*) AS tokens FROM t WHERE n = 1",
    "CREATE SOURCE s FROM files (path = '/data/*.csv')",
    "\\d secrets",
    "SELECT 'https://example.org/x'",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_statement_with_a_secret_is_not_kept(text: str, tmp_path: Path) -> None:
    """Damage: a password lies in a file in the user's home."""
    assert not may_be_kept(text)
    KeptHistory(tmp_path / "history").store_string(text)
    assert not (tmp_path / "history").exists()


@pytest.mark.parametrize("text", KEPT)
def test_what_holds_no_secret_is_kept(text: str) -> None:
    """Damage: Up recalls nothing."""
    assert may_be_kept(text)


def test_it_comes_back_as_it_was_typed_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    """Damage: a statement of several lines comes back in pieces; or others on the machine read it."""
    path = tmp_path / "state" / "strandline" / "history"
    kept = KeptHistory(path)
    for text in ("SELECT 1;", "SELECT\n  'ä';"):
        kept.store_string(text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    kept.store_string("SELECT 3;")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.open("ab") as file:
        file.write(b'"half a l')
    assert list(KeptHistory(path).load_history_strings()) == ["SELECT 3;", "SELECT\n  'ä';", "SELECT 1;"]


def test_it_does_not_grow_for_ever(tmp_path: Path) -> None:
    """Damage: after years the shell takes seconds to start."""
    path = tmp_path / "history"
    path.write_text("".join(f'"SELECT {n};"\n' for n in range(2 * KEPT_MAX + 1)))
    assert len(list(KeptHistory(path).load_history_strings())) == KEPT_MAX
    assert len(path.read_text().splitlines()) == KEPT_MAX
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_place_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: on a machine with a full disk there is no shell."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    kept = KeptHistory(prompting.place())
    kept.store_string("SELECT 1;")
    assert list(kept.load_history_strings()) == []
