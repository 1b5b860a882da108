"""Configuration: where an environment lives and how it runs, as typed values; with intervals of time and paths in URLs.

It comes from ``strandline.open(…, config=…)`` or a project's ``strandline.yml``; unknown keys are refused by name.
Secrets are references (``env:NAME``, ``file:PATH``) that are resolved where they are used and never stored.

Users write intervals of time as ``1 hour``, ``90 seconds``, ``1 day 12 hours``, ``0``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from strandline.errors import ConfigError
from strandline.options import Kind, is_reference

UNITS_MS: Final = {"ms": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_NAMES: Final = {
    **{f"{unit}{plural}": ms for unit, ms in UNITS_MS.items() if unit != "ms" for plural in ("", "s")},
    "ms": 1,
    "millisecond": 1,
    "milliseconds": 1,
    "s": 1_000,
    "sec": 1_000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
YEARS_MAX: Final = 1_000
TEXTS_REMEMBERED: Final = 1_000
"""Of how many texts it is remembered how long they are; those that were asked for last: every tick asks."""
_MS_MAX: Final = YEARS_MAX * 365 * UNITS_MS["day"]


@lru_cache(maxsize=TEXTS_REMEMBERED)
def milliseconds(text: str) -> int:
    """Return the interval in milliseconds, whole ones.

    >>> [milliseconds(text) for text in ("1 hour", "1 day 12 hours", "1.5 s", "250ms", "0", "0 days")]
    [3600000, 129600000, 1500, 250, 0, 0]
    >>> milliseconds("an hour")
    Traceback (most recent call last):
        ...
    ValueError: 'an hour' is no interval: write '1 hour' or '1 day 12 hours', with ms, second, minute, hour, day; or 0

    Raises `ValueError`, one sentence, for what is no interval or longer than `YEARS_MAX` years.
    """
    words = text.strip().lower()
    if words == "0":
        return 0
    total, at = 0.0, 0
    while at < len(words) and (part := _PART.match(words, at)) and part[2] in _NAMES:
        total, at = total + float(part[1]) * _NAMES[part[2]], part.end()
    if not words or at < len(words):
        units = ", ".join(UNITS_MS)
        raise ValueError(f"{text!r} is no interval: write '1 hour' or '1 day 12 hours', with {units}; or 0")
    if total > _MS_MAX:
        raise ValueError(f"{text!r} is longer than {YEARS_MAX} years")
    return round(total)


INTERVAL_MS: Final = Kind(milliseconds, {"minLength": 1})
"""An option that is an interval, in milliseconds."""


def refuse_no_interval(keep_history: str) -> None:
    """Raise `ValueError`, naming the setting, if that is none."""
    try:
        milliseconds(keep_history)
    except ValueError as error:
        raise ValueError(f"keep_history: {error}") from None


def path_of(url: str) -> Path:
    """Return the path of a URL that says nothing but a path.

    >>> path_of("file:///data/a%20b")
    PosixPath('/data/a b')

    Raises `ConfigError`: it says more, which would be left out silently.
    """
    place = urlsplit(url)
    if place.netloc not in {"", "localhost"} or "?" in url or "#" in url:
        raise ConfigError(
            f"{place.scheme}:// takes an absolute path behind a third slash, and no host: "
            f"{place.scheme}:///data/strand; in the path, write ? as %3F and # as %23"
        )
    return Path(unquote(place.path))


TICK_MS_DEFAULT: Final = 1000
DEPLOYMENT_DEFAULT: Final = "default"
CACHE_BYTES_DEFAULT: Final = 256 << 20
KEEP_HISTORY_DEFAULT: Final = "1 hour"
EXECUTORS_WAIT_S_DEFAULT: Final = 30
"""A standalone cluster starts an executor in a few seconds, and another in place of a lost one."""
EXECUTORS_END_S_DEFAULT: Final = 600
QUERY_LIMIT_S_DEFAULT: Final = 3600
NOWHERE: Final = "none"
"""What ``console_at`` says where there is to be no console."""
TRACES: Final = ("endpoint", "headers")
"""The settings of ``traces``."""
FROM_MAVEN: Final = "maven"
"""Where jars come from that lie in no directory."""


class Mode(Enum):
    """What an environment may do at its location."""

    FULL = "full"
    """All of it: the one that writes."""
    READ = "read"
    """No data, but leases: what it reads is held for it.  It receives notices of new versions."""
    INDEPENDENT = "independent"
    """Nothing that another process could see: no write, no connection.  What it reads is protected by the time that
    passes before garbage is deleted; what is gone is `AsOfError`."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an environment runs.

    ``deployment`` names the writer: restarts of one deployment succeed each other without an operator.  ``reentrant``
    false: a dead holder must be released by an operator.  ``take_over``: fence the present holder of the location.
    ``tick_ms``: the interval of ``strandline run``.  ``lanes``: how many views may be computed anew, or catch up with
    much, at a time; None: half as many as there are processors.
    ``keep_history``: how long the past of collections stays readable that do not say so themselves (``KEEP HISTORY
    FOR``): an interval such as ``1 hour`` or ``7 days``, or ``0``.
    ``cache_bytes``: how much of an object store is kept in local files (0: nothing), in ``cache`` if that is said.
    ``spark``: Spark configuration (``spark.master`` and what else a cluster wants).
    ``executors_wait_s``: how many seconds a job waits for executors of a cluster while there is none; then what needs
    it fails, names what is missing, and is tried again at the next tick.  ``executors_end_s``: after how many seconds
    without an executor, while jobs want one, this process ends with status 6 (0: never); at once if the master of the
    cluster no longer knows it.
    ``query_limit_s``: how many seconds a query may take, with what it waits, until it is cancelled (0: no limit).
    ``kafka_jars``: where Spark gets its Kafka connector from, which reads long topics: ``maven``, or a directory with
    its jars.  Without it (and if Spark does not have it anyway) this process reads them.
    ``functions``: what views may call besides Spark's functions, by name: a ``udf`` of Spark's that is deterministic,
    or its place (``MODULE:NAME``, MODULE a module or a file).
    ``storage``: how to reach an object store: ``endpoint`` (a server of one's own), ``region``, ``access_key_id``,
    ``secret_access_key``, ``session_token``; what is not said is taken from the environment variables that the store's
    own tools read.
    ``replica_token``: what this environment proves to know to the replicas of its instances, which obey no other
    caller, and they to it: a reference, and no token itself.  Without it, that of a file in a location in files.
    ``replica_certificate`` and ``replica_key``: the files (PEM) by which a replica that does not listen on loopback
    shows who it is; ``replica_authority``: of whose certificates it must be, for the environment.
    ``serve_at``: an address (``host:port``) at which ``strandline run`` serves Arrow Flight SQL, beside the socket of a
    location in files.  It wants ``serve_token``, a reference, and off loopback ``serve_certificate`` and ``serve_key``,
    files (PEM).
    ``console_at``: an address (``host:port``) at which it serves its console and metrics, in place of a free port of
    127.0.0.1; ``none``: nowhere.  With a ``serve_token`` they want that token; off loopback they need it, and TLS.
    ``traces``: where it sends traces by OTLP over HTTP: ``endpoint`` (``http://host:4318``), and ``headers``, a
    reference to text such as ``authorization=Bearer …``.  Without it, what ``OTEL_EXPORTER_OTLP_ENDPOINT`` says.
    """

    deployment: str = DEPLOYMENT_DEFAULT
    reentrant: bool = True
    take_over: bool = False
    tick_ms: int = TICK_MS_DEFAULT
    lanes: int | None = None
    keep_history: str = KEEP_HISTORY_DEFAULT
    cache: str | None = None
    cache_bytes: int = CACHE_BYTES_DEFAULT
    spark: dict[str, str] = {}
    storage: dict[str, str] = {}
    executors_wait_s: int = EXECUTORS_WAIT_S_DEFAULT
    executors_end_s: int = EXECUTORS_END_S_DEFAULT
    query_limit_s: int = QUERY_LIMIT_S_DEFAULT
    kafka_jars: str | None = None
    functions: dict[str, Any] = {}
    replica_token: str | None = None
    replica_certificate: str | None = None
    replica_key: str | None = None
    replica_authority: str | None = None
    serve_at: str | None = None
    serve_token: str | None = None
    serve_certificate: str | None = None
    serve_key: str | None = None
    console_at: str | None = None
    traces: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.tick_ms < 1:
            raise ConfigError(f"tick_ms is {self.tick_ms}; it must be at least 1")
        if self.executors_wait_s < 1:
            raise ConfigError(f"executors_wait_s is {self.executors_wait_s}; it must be at least 1")
        if self.executors_end_s < 0:
            raise ConfigError(f"executors_end_s is {self.executors_end_s}; it must not be negative (0: it never ends)")
        if self.query_limit_s < 0:
            raise ConfigError(f"query_limit_s is {self.query_limit_s}; it must not be negative (0: no limit)")
        if self.lanes is not None and self.lanes < 1:
            raise ConfigError(f"lanes is {self.lanes}; it must be at least 1")
        try:
            refuse_no_interval(self.keep_history)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.cache_bytes < 0:
            raise ConfigError(f"cache_bytes is {self.cache_bytes}; it must not be negative (0: no cache)")
        if self.replica_token is not None and not is_reference(self.replica_token):
            raise ConfigError("replica_token is a secret: say where it is (env:NAME or file:PATH), not what it is")
        if self.serve_token is not None and not is_reference(self.serve_token):
            raise ConfigError("serve_token is a secret: say where it is (env:NAME or file:PATH), not what it is")
        if unknown := sorted(self.traces.keys() - TRACES):
            raise ConfigError(f"traces has no setting {unknown[0]!r}; it has {' and '.join(TRACES)}")
        if self.traces and "endpoint" not in self.traces:
            raise ConfigError("traces names no endpoint: say where they go, such as http://localhost:4318")
        if "headers" in self.traces and not is_reference(self.traces["headers"]):
            raise ConfigError("the headers of traces are a secret: say where they are (env:NAME or file:PATH)")


def config_from(settings: Mapping[str, Any] | None) -> Config:
    """Return typed configuration.

    >>> config_from({"tick_ms": 250}).tick_ms
    250
    >>> config_from({"tickms": 250})
    Traceback (most recent call last):
        ...
    strandline.errors.ConfigError: configuration: Object contains unknown field `tickms`

    Raises `ConfigError` naming the setting.
    """
    try:
        return msgspec.convert(dict(settings or {}), Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"configuration: {error}") from error
