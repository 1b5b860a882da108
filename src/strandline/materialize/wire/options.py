"""The options of ``INTO connector``, and what of them reaches the connector.

A connector's configuration is JSON.  A text in it may be a reference to the place of the real value (``env:NAME``,
``file:PATH``), and so may the whole; neither the configuration nor what a reference stands for is ever an argument of
the process, or a part of a message.  A connector gets no variable of our environment but the few that programs need,
and those that the option ``environment`` names.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from strandline.errors import ConfigError
from strandline.materialize.wire.codec import Codec, JsonCodec, ProtoCodec
from strandline.options import ANY_TEXT, DURATION_MS, TEXT, Kind, holds_secret, one_of, option, resolve_reference
from strandline.options import is_reference as refers
from strandline.store.secret import Secret

_CONFIG: Final = Kind(Secret, {"minLength": 1}, may_refer=True)
CODEC_VARIABLE: Final = "FLOW_RUNTIME_CODEC"
_PASSED: Final = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TZ",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "https_proxy",
    "http_proxy",
    "no_proxy",
)


class CodecName(Enum):
    """The forms of the wire."""

    PROTO = "proto"
    JSON = "json"


_CODECS: Final[Mapping[CodecName, type[ProtoCodec | JsonCodec]]] = {
    CodecName.PROTO: ProtoCodec,
    CodecName.JSON: JsonCodec,
}


def codec(name: str) -> Codec:
    """Return the codec that `CODEC_VARIABLE` names.

    >>> codec("json").name
    'json'

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return _CODECS[CodecName(name)]()
    except ValueError:
        raise ConfigError(f"{CODEC_VARIABLE} is {name!r}; it can be proto or json") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOptions:
    """Which program the endpoint is, and how it is configured."""

    command: str = option(TEXT, "The connector and its arguments, as a shell splits them; no shell runs it.")
    codec: CodecName = option(one_of(CodecName), "How messages are bytes.", default="proto")
    config: Secret = option(
        _CONFIG,
        "The connector's own configuration, as JSON. The whole, or any text in it, may be a reference: `env:NAME`, "
        "`file:PATH`.",
        default="{}",
    )
    resource: str = option(TEXT, "What each resource is configured with besides its name, as JSON.", default="{}")
    environment: str = option(ANY_TEXT, "Variables of our environment that the connector gets, by commas.", default="")
    silence: int = option(
        DURATION_MS,
        "A connector that owes an answer and is silent for so long is stopped. (Acknowledged is waited for without "
        "end.)",
        default="10m",
    )

    def __post_init__(self) -> None:
        try:
            shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"option 'command' cannot be split into words: {error}") from error
        _object("resource", self.resource)

    @property
    def words(self) -> list[str]:
        """The program and its arguments."""
        return shlex.split(self.command)

    @property
    def resource_fields(self) -> dict[str, Any]:
        """What resources are configured with."""
        return _object("resource", self.resource)

    def understood_config(self) -> Config:
        """Return the configuration, its references resolved.

        Raises:
            ConfigError: it is no JSON object, or a reference leads nowhere.
        """
        try:
            given = _object("config", self.config.reveal(), shown=False)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        secrets: list[Secret] = []
        return Config(_resolved("", given, secrets), tuple(secrets))

    def variables(self) -> dict[str, str]:
        """Return the environment of the connector."""
        names = [*_PASSED, *(name.strip() for name in self.environment.split(",") if name.strip())]
        found = {name: os.environ[name] for name in names if name in os.environ}
        return {**found, CODEC_VARIABLE: self.codec.value}


@dataclass(frozen=True, slots=True, repr=False)
class Config:
    """A connector's configuration; ``secrets`` are the texts in it that must not be shown."""

    fields: Mapping[str, Any]
    secrets: tuple[Secret, ...]


def _object(name: str, text: str, *, shown: bool = True) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(f"option {name!r} is not JSON: {error}" if shown else f"option {name!r} is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"option {name!r} must be a JSON object")  # noqa: TRY004 - what `options.understood` expects
    return found


def _resolved(name: str, value: Any, secrets: list[Secret]) -> Any:
    """Return a value of the configuration without references; collect what is secret in it."""
    if isinstance(value, dict):
        return {inner: _resolved(inner, each, secrets) for inner, each in value.items()}
    if isinstance(value, list):
        return [_resolved(name, each, secrets) for each in value]
    if not isinstance(value, str):
        return value
    if refers(value):
        text = resolve_reference(value, base=Path())
        secrets.append(Secret(text))
        return text
    if holds_secret(name, value):
        secrets.append(Secret(value))
    return value
