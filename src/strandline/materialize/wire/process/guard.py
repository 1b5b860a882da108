"""The parent of a connector: ends it, and all that it started, when the process that asked for it is gone.

It is run as a program of its own: ``guard.py LIFE STATUS COMMAND ...``.  LIFE is a pipe that nothing is written to and
whose other end that process alone holds, so it ends when that process does, by whatever cause.  STATUS is a pipe that
the guard alone holds, so it ends when the guard does.  The connector has the guard's
stdin, stdout, stderr and process group.  The guard imports next to nothing, so that it starts at once.

It ends with the connector's status, or 128 + the signal; 127 if the program cannot be started.
"""

from __future__ import annotations

import os
import select
import signal
import sys

NOT_STARTED = 127
SIGNALLED = 128


def main(life: int, held: int, command: list[str]) -> int:
    """Run ``command`` until it ends, or until ``life`` does; ``held`` ends with us."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        _become((life, held), command)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # they are the connector's alone, so that their end is seen
        os.dup2(null, descriptor)
    while True:
        ready, _, _ = select.select([life, woken], [], [])
        if life in ready:
            os.killpg(0, signal.SIGKILL)
        os.read(woken, 1)
        found, how = os.waitpid(child, os.WNOHANG)
        if found == child:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)  # what the connector has left behind
            return os.WEXITSTATUS(how) if os.WIFEXITED(how) else SIGNALLED + os.WTERMSIG(how)


def _become(ours: tuple[int, int], command: list[str]) -> None:
    for descriptor in ours:
        os.close(descriptor)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the endpoint's owner names the program
    except OSError as error:
        os.write(2, f"{command[0]!r} cannot be started: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
