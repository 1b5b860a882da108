"""The extras: client libraries that only some sources, endpoints and stores need, each installed by a name of pip's.

``pip install strandline`` brings none of them.  The registries call `require` before they open such a source, endpoint
or store, so that a library that is missing is one sentence with the command that installs it, and never a traceback.
No module that is imported before a kind is opened imports one of these libraries at its top; tests/test_extras.py
holds that.

The versions are in pyproject.toml, under the same names (a test compares).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from strandline.errors import ConfigError

DELTA: Final = "delta"
FLOW: Final = "flow"
ICEBERG: Final = "iceberg"
KAFKA: Final = "kafka"
MARIADB: Final = "mariadb"
POSTGRES: Final = "postgres"
REDIS: Final = "redis"
S3: Final = "s3"
TRACES: Final = "traces"

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    DELTA: ("deltalake",),
    FLOW: ("fdb", "highwayhash"),
    ICEBERG: ("pyiceberg",),
    KAFKA: ("confluent_kafka",),
    MARIADB: ("pymysql",),
    POSTGRES: ("psycopg",),
    REDIS: ("redis",),
    S3: ("obstore",),
    TRACES: ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Of each extra, the modules that it makes importable."""


def no_extras(_: object) -> Sequence[str]:
    """Need no library beyond those that are always installed, whatever the options."""
    return ()


def missing(extra: str) -> tuple[str, ...]:
    """Return the modules of ``extra`` that this Python cannot import."""
    return tuple(module for module in MODULES[extra] if not there(module))


def there(module: str) -> bool:
    """Tell whether this Python can import ``module``, without doing so."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False


def lacking(error: ModuleNotFoundError) -> str:
    """Return what to say of a module that could not be imported, if an extra has it; else an empty text.

    >>> lacking(ModuleNotFoundError("gone", name="deltalake.fs"))
    "the library deltalake is not installed: pip install 'strandline[delta]'"
    >>> lacking(ModuleNotFoundError("gone", name="nonesuch"))
    ''
    """
    module = (error.name or "").partition(".")[0]
    tops = {each.partition(".")[0]: extra for extra, modules in MODULES.items() for each in modules}
    extra = tops.get(module)
    return "" if extra is None else f"the library {module} is not installed: {command(extra)}"


def command(extra: str) -> str:
    """Return what installs ``extra``.

    >>> command("postgres")
    "pip install 'strandline[postgres]'"
    """
    return f"pip install 'strandline[{extra}]'"


def require(owner: str, extras: Iterable[str]) -> None:
    """Raise `ConfigError` if a library of ``extras`` is missing; ``owner`` is what needs it, as a message names it."""
    for extra in extras:
        if modules := missing(extra):
            raise ConfigError(f"{owner} needs the library {modules[0]}, which is not installed: {command(extra)}")
