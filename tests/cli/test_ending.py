"""Ctrl-C ends a command, whatever it waits for."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from strandline.cli.terminal.exits import INTERRUPTED, ended_by_interrupts

WAITING: Final = """
import signal, threading
from strandline.cli.terminal.exits import ended_by_interrupts

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without it
with ended_by_interrupts():
    try:
        print("begun", flush=True)
        threading.Event().wait()
    finally:
        print("ending", flush=True)
        threading.Event().wait()
"""
"""A command that waits for ever, and then again until what it opened is closed."""


@contextmanager
def interrupted() -> Iterator[subprocess.Popen[str]]:
    """Yield such a command, at which Ctrl-C was pressed, and which closes what it opened."""
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "ending\n"
            yield process
        finally:
            process.kill()


def test_a_command_that_does_not_close_ends_all_the_same() -> None:
    """Damage: a person waits for a command that waits for a server that is gone."""
    with interrupted() as process:
        assert process.wait(60) == INTERRUPTED


def test_a_second_interrupt_ends_it_at_once() -> None:
    """Damage: pressing Ctrl-C again does nothing."""
    with interrupted() as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in {-signal.SIGINT, INTERRUPTED}


def test_a_program_that_runs_a_command_keeps_its_own_handler() -> None:
    """Damage: a program that was interrupted once in a command ends later, in the middle of something else."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), ended_by_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, own := lambda *_: None)
        with ended_by_interrupts():
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
