"""`strandline discover` prints what can be run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.cli.app import main
from strandline.controller.language.statements import CreateSource, parse, split
from strandline.testing.kinds import Kinds
from strandline.testing.lists.list_source import Upstream


def test_a_directory_becomes_a_statement_without_a_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: a new user cannot look at their files before they have a project."""
    (tmp_path / "orders.csv").write_text("id,city\n1,Delft\n")
    assert main(["discover", "files", f"path={tmp_path}", "--project", str(tmp_path / "none")]) == 0
    (text,) = split(capsys.readouterr().out)
    statement = parse(text)
    assert isinstance(statement, CreateSource)
    assert (statement.name, statement.columns) == (
        tmp_path.name.lower().replace("-", "_"),
        "`id` bigint, `city` string",
    )
    assert statement.options == {"path": f"{tmp_path}/*.csv"}


def test_a_connection_of_the_project_is_named_and_its_secrets_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the password of a server is in the terminal's history, or every statement repeats the server."""
    upstream = Upstream()
    upstream.produce("a", 1)
    upstream.produce("p", 1)
    Kinds({"one": upstream}).install(monkeypatch.setitem)
    (tmp_path / "strandline.yml").write_text("location: data")
    (tmp_path / "connections").mkdir()
    (tmp_path / "connections" / "here.yml").write_text("to: lists\noptions: {server: one, password: file:pw}")
    (tmp_path / "pw").write_text("canary-4711")
    assert main(["discover", "here", "--source", "bank", "--project", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["statements"][0] == "CREATE SOURCE bank FROM tables (connection = 'here');"
    assert [each["name"] for each in told["found"]] == ["a", "p"]
    assert "FROM SOURCE bank (reference = 'a');" in told["statements"][1]
    assert "canary" not in json.dumps(told)


def test_a_secret_that_is_given_is_never_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a password goes from the terminal into a file of the project, and every statement with it is refused."""
    upstream = Upstream()
    upstream.produce("a", 1)
    kinds = Kinds({"one": upstream})
    kinds.install(monkeypatch.setitem)
    asked = ["discover", "tables", "server=one", "password=canary-4711", "--project", str(tmp_path / "none")]
    for form in ([], ["--json"]):
        assert main([*asked, *form]) == 0
        out = capsys.readouterr().out
        assert "canary" not in out
        assert "password = 'env:TABLES_PASSWORD'" in out
    (source, _) = json.loads(out)["statements"]
    assert source.startswith("-- password: put it into the environment variable TABLES_PASSWORD\nCREATE SOURCE")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "there is no project"),
        (["clock"], "clock cannot say what there is to read; files"),
        (["files", "path"], "'path' is no option; write name=value"),
        (["files", "pth=/x"], "option 'pth' is not known; did you mean 'path'?"),
        (["files"], "option 'path' is missing"),
    ],
)
def test_what_cannot_be_asked_is_said(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: a traceback."""
    assert main(["discover", *arguments, "--project", str(tmp_path)]) != 0
    assert said in capsys.readouterr().err
