"""Commands beside a process that writes and does not answer: stopped by SIGSTOP, or on a machine that is too busy."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from strandline.cli.shell.connection import Connection
from strandline.cli.terminal import opening
from strandline.cli.terminal.opening import Opener
from strandline.controller.defining.project.settings import Project, settings
from strandline.errors import Silent
from strandline.serving.calls import ADDRESSES, DIRECTORY, Addresses

BESIDE = SimpleNamespace(writes=False)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Yield a project that a process serves which accepts connections and says nothing, as the kernel does for one."""
    monkeypatch.setattr(opening, "ANSWER_S", 0.2)
    monkeypatch.setattr(Opener, "beside", lambda self, project, note: BESIDE)
    (tmp_path / "strandline.yml").write_text("location: data\n")
    directory = tmp_path / "data" / DIRECTORY
    directory.mkdir(parents=True)
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(directory / "s"))
        listening.listen()
        told = Addresses([f"grpc+unix://{directory}/s"], os.getpid())
        (directory / ADDRESSES).write_bytes(msgspec.json.encode(told))
        yield settings(tmp_path)


def test_a_question_says_that_the_writer_is_silent_and_reads_the_location_itself(stopped: Project) -> None:
    """Damage: `status` takes 22 seconds, and a query waits without a word."""
    said: list[object] = []
    assert Opener().reading(stopped, said.append) is BESIDE
    (text,) = said
    assert f"process {os.getpid()} writes" in str(text)
    assert "has not answered within 0.2 seconds" in str(text)
    assert f"kill -CONT {os.getpid()}" in str(text)


def test_a_change_is_refused_with_the_same_sentence(stopped: Project) -> None:
    """Damage: the command opens Spark to write a location that another process holds."""
    with pytest.raises(Silent, match="has not answered"):
        Opener().changing(stopped)


def test_a_shell_reads_beside_it_and_refuses_changes(stopped: Project) -> None:
    """Damage: each statement in the shell waits, and then ends the shell."""
    said: list[str] = []
    shell = Connection(Opener(), stopped, said.append, lambda _: None)
    assert "this shell reads it itself" in shell.open()
    assert "has not answered" in said[0]
    assert shell.ready(changes=False) is BESIDE
    with pytest.raises(Silent):
        shell.ready(changes=True)
