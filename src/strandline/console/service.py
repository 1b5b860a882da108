"""The service: what `strandline run` opens to be seen: the console with its metrics, and traces."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import uvicorn

from strandline.client import Environment
from strandline.connections.addresses import cannot_listen
from strandline.console.gate import Sessions
from strandline.console.pages import application
from strandline.console.traces import Traces, traces
from strandline.console.watch import Watch
from strandline.controller.location.config import NOWHERE, Config
from strandline.errors import ConfigError
from strandline.instance.carriers.access import Address
from strandline.instance.carriers.exchange import start_thread
from strandline.serving import Door, Serving
from strandline.store.clock import Clock, Ids, SystemClock, SystemIds

ANYWHERE: Final = "127.0.0.1:0"
CONNECTIONS_MAX: Final = 64
IDLE_S: Final = 10
ENDING_S: Final = 2
HEADERS_BYTES_MAX: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Observer:
    """What sees the environment; ``http``: where its console is, None: nowhere."""

    http: str | None
    _watch: Watch
    _traces: Traces | None
    _env: Environment

    def ticked(self, seconds: float) -> None:
        """A tick has ended that took so long."""
        self._watch.ticks.note(seconds)
        if self._traces is not None:
            ended_ms = self._watch.now_ms
            self._traces.tick(ended_ms - round(1000 * seconds), ended_ms, self._env.figures()["steps"])


@contextmanager
def observed(env: Environment, serving: Serving) -> Iterator[Observer]:
    """Serve the console of ``env`` as its configuration says, and send traces, as long as the context lasts.

    Raises `ConfigError` if it cannot listen where it is to, or what traces need is missing.
    """
    traffic, clock, ids = serving.desk.traffic, SystemClock(), SystemIds()
    watch = Watch(env, clock, traffic)
    with ExitStack() as opened:
        sent = traces(env.config, None if env.directory is None else str(env.directory))
        if sent is not None:
            opened.callback(sent.close)
            traffic.observe = sent.statement
        http = None
        door = at(env.config)
        if door is not None:
            http = opened.enter_context(listening(watch, door, clock, ids))
            serving.announce(http)
        yield Observer(http, watch, sent, env)


def at(config: Config) -> Door | None:
    """Return where the console is served; None: nowhere.  Raises `ConfigError` if its token cannot be read."""
    return None if config.console_at == NOWHERE else Door.at(config.console_at or ANYWHERE, config)


@contextmanager
def listening(watch: Watch, door: Door, clock: Clock, ids: Ids) -> Iterator[str]:
    """Serve the console of ``watch`` as long as the context lasts; the value is its URL."""
    try:
        address = door.checked(tokenless=True)
    except ConfigError as error:
        raise ConfigError(f"the console: {error}") from error
    secure = door.certificate is not None
    with _bound(address) as listener:
        here = Address(address.host, listener.getsockname()[1])
        sessions = Sessions(door.token, clock, ids)
        cookie = f"strandline_{here.port}"
        app = application(watch, sessions, cookie, loopback=address.loopback, secure=secure)
        server = uvicorn.Server(_config(app, door))
        stop = threading.Event()
        looks = start_thread(partial(watch.follow, stop), "looks")
        serves = start_thread(partial(server.run, [listener]), "console")
        try:
            yield f"{'https' if secure else 'http'}://{here}"
        finally:
            stop.set()
            server.should_exit = True
            serves.wait(2 * ENDING_S)
            looks.wait(ENDING_S)


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        why = cannot_listen(address.local, error.strerror or str(error))
        raise ConfigError(f"cannot serve the console at {address} (`console_at`): {why}") from error


def _config(app: Any, door: Door) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=ENDING_S,
        h11_max_incomplete_event_size=HEADERS_BYTES_MAX,
        ssl_certfile=door.certificate,
        ssl_keyfile=door.key,
    )
    try:
        config.load()
    except OSError as error:
        raise ConfigError(
            f"`serve_certificate`, `serve_key`: they cannot be used ({error.strerror or error})"
        ) from error
    return config
