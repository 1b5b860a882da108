"""The settings of the two Kafka clients: librdkafka in this process, Kafka's own in Spark's connector.

Both read only what is committed (``read_committed``): messages of transactions that were aborted are never seen, and
what an open one wrote is not seen yet.

Source: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md, https://kafka.apache.org/documentation
(consumer configs; PEM stores: KIP-651).
"""

from __future__ import annotations

from typing import Final

from strandline.connections.kafka import ANSWER_SECONDS_MAX, KafkaConnection, Sasl, Settings, for_client, protocol
from strandline.store.secret import Secret

_LOGIN: Final = {
    Sasl.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Sasl.SCRAM_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Sasl.SCRAM_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def for_consumer(at: KafkaConnection, group: str) -> Settings:
    """Return librdkafka's settings for a consumer outside its group, which neither assigns nor commits by itself."""
    return {
        **for_client(at),
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",  # a range may end in offsets that hold no message
        "auto.offset.reset": "error",  # what is gone is an error, and never another place to begin at
        "check.crcs": "true",
        "fetch.wait.max.ms": "20",  # we ask for what is there: a broker has nothing to wait for
        "session.timeout.ms": str(ANSWER_SECONDS_MAX * 1000),  # how long a commit looks for the group's coordinator
    }


def for_spark(at: KafkaConnection) -> Settings:
    """Return the settings of Spark's connector: those of Kafka's own client, each with ``kafka.`` before it.

    >>> sorted(for_spark(KafkaConnection(servers="k:9092")))
    ['failOnDataLoss', 'kafka.bootstrap.servers', 'kafka.isolation.level', 'kafka.security.protocol']
    """
    known: dict[str, str | Secret | None] = {
        "ssl.truststore.type": at.tls_ca and "PEM",
        "ssl.truststore.certificates": at.tls_ca,
        "ssl.keystore.type": at.tls_certificate and "PEM",
        "ssl.keystore.certificate.chain": at.tls_certificate,
        "ssl.keystore.key": at.tls_private_key,
        "ssl.key.password": at.tls_private_key_password,
        "ssl.endpoint.identification.algorithm": None if at.tls_verify_host else "",
        "client.rack": at.rack,
        "sasl.mechanism": at.sasl and at.sasl.value.upper(),
        "sasl.jaas.config": _jaas(at),
    }
    given: dict[str, str | Secret] = {
        "bootstrap.servers": at.servers,
        "security.protocol": protocol(at),
        "isolation.level": "read_committed",
        **{name: value for name, value in known.items() if value is not None},
    }
    return {"failOnDataLoss": "true", **{f"kafka.{name}": value for name, value in given.items()}}


def _jaas(at: KafkaConnection) -> Secret | None:
    if at.sasl is None or at.user is None or at.password is None:
        return None
    user, password = (_quoted(text) for text in (at.user, at.password.reveal()))
    return Secret(f"{_LOGIN[at.sasl]} required username={user} password={password};")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
