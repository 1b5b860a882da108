"""A connection to a Kafka cluster: its options, the settings that librdkafka gets of them, and a login to try them.

Source: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from strandline import extras
from strandline.connections.addresses import SECRET, Address, of_hosts
from strandline.connections.logins import LOGIN_SECONDS_MAX, Login, Refused, Unanswered, user, values
from strandline.options import FLAG, PLACE, TEXT, one_of, option
from strandline.store.secret import Secret, revealed

ANSWER_SECONDS_MAX: Final = 5
"""After so long without an answer a broker is unavailable."""
CLIENT: Final = "strandline"
PORT_DEFAULT: Final = 9092
SILENT: Final = logging.getLogger("strandline.kafka.silent")
"""What librdkafka logs to: what matters of it becomes an error of ours."""
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


class Sasl(Enum):
    """How a client says who it is."""

    PLAIN = "plain"
    SCRAM_256 = "scram-sha-256"
    SCRAM_512 = "scram-sha-512"


@dataclass(frozen=True, kw_only=True)
class KafkaConnection:
    """How to reach a cluster: the options of CREATE CONNECTION … TO KAFKA."""

    servers: str = option(PLACE, "Some of the cluster's brokers: `host:port`, with commas between them.")
    tls: bool = option(FLAG, "Speak TLS.", default="false")
    tls_ca: str | None = option(
        PLACE, "The certificates to trust, as PEM, by reference; without it, those of this machine.", default=None
    )
    tls_certificate: str | None = option(PLACE, "The client's own certificate, as PEM, by reference.", default=None)
    tls_private_key: Secret | None = option(SECRET, "Its private key, as PEM (PKCS #8), by reference.", default=None)
    tls_private_key_password: Secret | None = option(
        SECRET, "The password of that key, by reference; without it, the key is not encrypted.", default=None
    )
    tls_verify_host: bool = option(
        FLAG, "A broker's certificate must be for the host that was asked for.", default="true"
    )
    sasl: Sasl | None = option(one_of(Sasl), "How to log in; without it, not at all.", default=None)
    user: str | None = option(PLACE, "Who logs in.", default=None)
    password: Secret | None = option(SECRET, "The password, by reference.", default=None)
    rack: str | None = option(TEXT, "Where this client is: brokers let it read from the nearest replica.", default=None)

    def __post_init__(self) -> None:
        """Raise `ValueError` if options do not go together."""
        if (self.sasl is None) != (self.user is None) or (self.user is None) != (self.password is None):
            raise ValueError("options 'sasl', 'user' and 'password' go together")
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            raise ValueError("options 'tls_certificate' and 'tls_private_key' go together")
        if self.tls_private_key_password is not None and self.tls_private_key is None:
            raise ValueError("option 'tls_private_key_password' needs 'tls_private_key'")
        for name in ("tls_ca", "tls_certificate"):
            if getattr(self, name) is not None and not self.tls:
                raise ValueError(f"option {name!r} needs tls = 'true'")

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`: some brokers of the cluster, which say where the others are."""
        return of_hosts(self.servers, PORT_DEFAULT)

    def login(self) -> Login:
        """See `LogsIn`: the cluster is asked for its topics."""
        given = values(self, KafkaConnection)
        place = f"Kafka at {self.servers}"
        return Login(place, user(self.user), given, self.addresses(), extras.KAFKA, partial(_log_in, self))


Settings = Mapping[str, str | Secret]


def for_client(at: KafkaConnection) -> Settings:
    """Return librdkafka's settings for any client of the cluster."""
    known = {
        "ssl.ca.pem": at.tls_ca,
        "ssl.certificate.pem": at.tls_certificate,
        "ssl.key.pem": at.tls_private_key,
        "ssl.key.password": at.tls_private_key_password,
        "ssl.endpoint.identification.algorithm": None if at.tls_verify_host else "none",
        "client.rack": at.rack,
        "sasl.mechanism": at.sasl and at.sasl.value.upper(),
        "sasl.username": at.user,
        "sasl.password": at.password,
    }
    return {
        "bootstrap.servers": at.servers,
        "security.protocol": protocol(at),
        "client.id": CLIENT,
        "socket.timeout.ms": str(ANSWER_SECONDS_MAX * 1000),
        "socket.connection.setup.timeout.ms": str(ANSWER_SECONDS_MAX * 1000),
        "reconnect.backoff.max.ms": "1000",
        **{name: value for name, value in known.items() if value is not None},
    }


def protocol(at: KafkaConnection) -> str:
    """Return Kafka's name of how the two ends speak.

    >>> protocol(KafkaConnection(servers="k:9092", tls=True))
    'SSL'
    """
    match at.tls, at.sasl is not None:
        case True, True:
            return "SASL_SSL"
        case True, False:
            return "SSL"
        case False, True:
            return "SASL_PLAINTEXT"
        case _:
            return "PLAINTEXT"


def _log_in(at: KafkaConnection) -> Refused | Unanswered | None:
    import confluent_kafka as kafka
    from confluent_kafka.admin import AdminClient

    heard: list[Any] = []
    settings: dict[str, Any] = {**revealed(for_client(at)), "logger": SILENT, "error_cb": heard.append}
    try:
        client = AdminClient(settings)
    except kafka.KafkaException as error:  # a certificate or a key that is none
        return Unanswered(error.args[0].str())
    try:
        client.list_topics(timeout=LOGIN_SECONDS_MAX)
    except kafka.KafkaException as error:
        client.poll(0)  # lets librdkafka say why
        for each in (error.args[0], *heard):
            if each.code() in {kafka.KafkaError._AUTHENTICATION, kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED}:  # noqa: SLF001 - public in C
                return Refused(each.str())
        return Unanswered((heard or error.args)[0].str())
    return None
