"""An S3 of our own: moto's, made honest, in a process of its own.

moto looks whether an object is there and then stores it, in two steps: with eight writers of one key and threads that
switch often, two of them got an answer of success in 14 of 200 rounds.  A server may not do that, so here a lock runs
requests one after the other; each is a few microseconds of Python, which run one after the other anyway.  That
this is enough is a test (`tests/store/blob_kinds/test_objects.py`).

    python s3_server.py      prints its port when it answers, and runs until it gets SIGTERM or its parent is gone
"""

from __future__ import annotations

import ctypes
import logging
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
"""Linux: send me a signal when my parent dies."""
REGION: Final = "us-east-1"
ACCESS_KEY_ID: Final = "strandline-test"
SECRET_ACCESS_KEY: Final = "not-a-secret"
SWITCH_SECONDS: Final = 1e-6
"""Threads of the server take turns as often as they can, so that a race that can be lost is."""


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    port: int
    bucket: str
    process: subprocess.Popen[str]

    @property
    def endpoint(self) -> str:
        """Where it answers; buckets are paths, not host names."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> dict[str, str]:
        """The options that Strandline needs to talk to it, as a configuration has them."""
        return {
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
        }

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.communicate(timeout=180)


def start(bucket: str) -> S3Server:
    """Start a server that has an empty bucket, and wait until it answers."""
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    server = S3Server(int(process.stdout.readline()), bucket, process)
    urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/{bucket}", method="PUT")).close()
    return server


def one_at_a_time(application: Callable[[dict[str, Any], Any], Iterable[bytes]]) -> Any:
    """Return the WSGI application that answers one request after the other, whole."""
    lock = threading.Lock()

    def serialized(environment: dict[str, Any], start_response: Any) -> list[bytes]:
        with lock:
            return [b"".join(application(environment, start_response))]

    return serialized


def main() -> None:
    """Serve until the process gets a signal to stop."""
    from moto.server import create_backend_app
    from werkzeug.serving import make_server

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # tests that are killed leave no server
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    sys.setswitchinterval(SWITCH_SECONDS)
    server = make_server("127.0.0.1", 0, one_at_a_time(create_backend_app("s3")), threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
