"""A proxy before a server, which cuts the connection at COMMIT: before the server has it, or before its answer."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress


class CuttingProxy:
    """Forwards what it gets; ``cut`` says what to do at the next COMMIT: "lost" (it never arrives), or "done".

    ``commit``: what a client sends to commit.
    """

    def __init__(self, port: int, commit: bytes) -> None:
        self._commit = commit
        self.cut = ""
        self.meanwhile: Callable[[], None] = lambda: None
        """Called after a COMMIT whose answer is withheld."""
        self._upstream = port
        self._threads = ThreadPoolExecutor(64)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads.submit(self._accept)

    def close(self) -> None:
        """Stop."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.submit(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        withheld: list[str] = []
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server, suppress(OSError):
            self._threads.submit(self._answers, client, server, withheld)
            try:
                while data := client.recv(1 << 16):
                    if self.cut and self._commit in data:
                        how, self.cut = self.cut, ""
                        if how == "lost":
                            client.shutdown(socket.SHUT_RDWR)
                            return
                        withheld.append(how)
                    server.sendall(data)
            finally:
                server.shutdown(socket.SHUT_RDWR)  # else the other thread keeps it open, and the server its locks

    def _answers(self, client: socket.socket, server: socket.socket, withheld: list[str]) -> None:
        with suppress(OSError):
            try:
                while data := server.recv(1 << 16):
                    if withheld:
                        self.meanwhile()
                        return
                    client.sendall(data)
            finally:
                client.shutdown(socket.SHUT_RDWR)
