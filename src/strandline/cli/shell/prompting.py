"""Prompting: the line that is typed: keys, colours, history, completion; and the loop of the shell."""

from __future__ import annotations

import signal
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.filters import completion_is_selected, has_completions
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.text import Text

from strandline.cli.shell import commands
from strandline.cli.shell.colours import StatementLexer
from strandline.cli.shell.completion import ShellCompleter
from strandline.cli.shell.connection import Connection
from strandline.cli.shell.history import KeptHistory, place
from strandline.cli.shell.running import Leave, Shell
from strandline.cli.shell.tables import FAINT, HEAD
from strandline.cli.shell.texts import finished
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.opening import Opener, keep_apart
from strandline.cli.terminal.output import printable

PROMPT: Final = "strandline> "
IN_TRANSACTION: Final = "strandline*> "
_LOCAL: Final = 3
"""Where the attributes of a terminal say what it does by itself with keys."""
_TERMINATED: Final = 128 + signal.SIGTERM


def shell(opener: Opener, root: Path) -> int:
    """Take what the user types, until the user leaves.  Return the exit status."""
    project = opener.place(root)
    if opener.spark is None:
        keep_apart()  # before anything holds on to standard output
    console = Console(highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(Text(printable(text), FAINT), soft_wrap=False)

    connection = Connection(opener, project, say, threading.Event().wait)
    with ExitStack() as opened, _terminated(), _silent():
        opened.callback(connection.close)
        with console.status("connecting"):
            where = connection.open()
        console.print(Text.assemble(("Strandline", HEAD), f", {printable(where)}"))
        say(r"A statement ends with ;   \? lists the commands   \q leaves")
        running = Shell(connection, console)
        opened.callback(running.close)
        session = _session(running)
        while True:
            try:
                typed = session.prompt(IN_TRANSACTION if running.in_transaction else PROMPT)
                running.run(typed)
            except KeyboardInterrupt:
                continue  # what was typed is dropped
            except (EOFError, Leave):
                return Exit.OK


def _session(running: Shell) -> PromptSession[str]:
    return PromptSession(
        lexer=StatementLexer(),
        completer=ShellCompleter(running.names, commands.NAMES),
        complete_in_thread=True,
        complete_while_typing=False,
        history=KeptHistory(place()),
        auto_suggest=AutoSuggestFromHistory(),
        multiline=True,
        prompt_continuation=_continued,
        key_bindings=_keys(),
        enable_open_in_editor=True,
        mouse_support=False,
    )


def _continued(width: int, _: int, wrapped: int) -> str:
    """Return what stands before a further line of a statement."""
    return "" if wrapped else "-> ".rjust(width)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~(has_completions & completion_is_selected))
    def _(event: KeyPressEvent) -> None:
        """Run what is finished, else begin a further line."""
        buffer = event.current_buffer
        if finished(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @keys.add("enter", filter=has_completions & completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        """Take the completion that is chosen."""
        event.current_buffer.complete_state = None

    return keys


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the terminal from showing keys while a statement runs; the prompt shows them, with their colours."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    quiet = [*before]
    quiet[_LOCAL] &= ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM end the shell as it ends other programs, once everything is closed; Ctrl-C ends a statement alone."""

    def end(*_: object) -> None:
        raise SystemExit(_TERMINATED)

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, end),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
