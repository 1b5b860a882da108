"""Commands beside a process that writes and does not answer: stopped by SIGSTOP, or on a machine that is too busy."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from strandline.cli.shell.connection import Connection
from strandline.cli.terminal import opening
from strandline.cli.terminal.opening import Opener
from strandline.client import Environment
from strandline.client.access import Access
from strandline.controller.core import Core
from strandline.controller.defining.project.settings import Project, settings
from strandline.controller.location.config import Config, Mode
from strandline.errors import Held, Silent, StrandlineError
from strandline.serving.calls import ADDRESSES, DIRECTORY, Addresses
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.wiring.loop import LoopThread

BESIDE = SimpleNamespace(writes=False)
PATIENCE_S = 120.0


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


def test_a_change_waits_for_it_says_so_once_and_is_refused_with_the_same_sentence(stopped: Project) -> None:
    """Damage: the command opens Spark to write a location that another process holds; or waits without a word."""
    said: list[object] = []
    with pytest.raises(Silent, match="has not answered"):
        Opener(wait_s=0.5).changing(stopped, said.append)
    (text,) = said
    assert "has not answered within 0.2 seconds" in str(text)
    assert str(text).endswith("; waiting for it, for 1 s at most") or str(text).endswith("for 0 s at most")


@pytest.mark.parametrize("error", [Silent("it is busy"), Held("it starts")])
@pytest.mark.parametrize("ends", [False, True])
def test_a_change_is_made_by_a_process_that_was_busy_or_starting_or_here_once_that_has_ended(
    stopped: Project, monkeypatch: pytest.MonkeyPatch, error: StrandlineError, ends: bool
) -> None:
    """Damage: an INSERT is refused because the writer has a long step, or is just being started."""
    met: list[StrandlineError | None] = [error] * 3
    written = SimpleNamespace(writes=True)

    def meets(what: object) -> object:
        if met:
            raise met.pop()
        return what

    busy = isinstance(error, Silent)
    monkeypatch.setattr(Opener, "living", lambda *_: meets(None if ends else BESIDE) if busy or not met else None)
    monkeypatch.setattr(Opener, "writing", lambda *_: meets(written))
    said: list[object] = []
    assert Opener().changing(stopped, said.append) is (written if ends else BESIDE)
    (text,) = said
    assert str(text).startswith(f"strandline: {error}; waiting for it, for 60 s at most")


def test_a_writer_that_has_a_long_call_answers_that_it_is_there() -> None:
    """Damage: one UPDATE that Spark computes for a minute has every other command say that the writer is stopped."""
    assembly: Any = list_assembly(HandClock(1_000), CountingIds(), MemoryBlob(), MemoryConsensus())
    loop = LoopThread()
    access = Access(loop.run(Core.open(assembly, Config(), Mode.FULL)), assembly, loop)
    with ThreadPoolExecutor(1) as beside, access.turn:  # as a call has it until it is done
        assert f"process {os.getpid()} on host" in str(beside.submit(Environment(access).written_by).result(PATIENCE_S))
    loop.run(access.core.close())
    loop.stop()


def test_a_shell_reads_beside_it_and_refuses_changes(stopped: Project) -> None:
    """Damage: each statement in the shell waits, and then ends the shell."""
    said: list[str] = []
    shell = Connection(Opener(wait_s=0.5), stopped, said.append, lambda _: None)
    assert "this shell reads it itself" in shell.open()
    assert "has not answered" in said[0]
    assert shell.ready(changes=False) is BESIDE
    with pytest.raises(Silent):
        shell.ready(changes=True)
    assert "waiting for it" in said[-1]
