"""The options of a Kafka source and its connection, and the settings that they become for the two Kafka clients.

    CREATE CONNECTION shop TO KAFKA (servers = 'kafka:9093', tls, sasl = 'scram-sha-512', user = 'strandline',
        password = 'env:KAFKA_PASSWORD')
    CREATE SOURCE orders (id BIGINT, total DECIMAL(10, 2), at TIMESTAMP) FROM KAFKA (connection = shop,
        topic = 'orders') KEY (id) KEY FORMAT TEXT FORMAT JSON INCLUDE TIMESTAMP AS at ENVELOPE UPSERT

The clients are librdkafka in this process, and Kafka's own in Spark's connector.  Both read only committed messages
(``read_committed``): they never return messages of aborted transactions, nor those of transactions that are still open.

Source: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md, https://kafka.apache.org/documentation
(consumer configs; PEM stores: KIP-651).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Final

from strandline.algebra.messages import MessageEncoding, MessageFormat, Metadata, Shape
from strandline.connections.addresses import SECRET, Address, of_url
from strandline.connections.kafka import ANSWER_SECONDS_MAX, KafkaConnection, Sasl, Settings, for_client, protocol
from strandline.errors import ConfigError
from strandline.options import ANY_TEXT, CHARACTER, COUNT, FLAG, PLACE, TEXT, Kind, one_of, option
from strandline.store.secret import Secret

SMALL_MESSAGES_DEFAULT: Final = "5000"
INCLUDE: Final = "include_"
_OF_CSV: Final = ("delimiter", "quote", "escape", "nulls")
_OF_TEXT: Final = ("timestamp_format", "date_format")


class Start(Enum):
    """Where a partition begins that was there when the source was made."""

    EARLIEST = "earliest"
    LATEST = "latest"


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("it must be names of columns with commas between them")
    return names


COLUMNS: Final = Kind(_columns, {"minLength": 1})


@dataclass(frozen=True, kw_only=True)
class RegistryConnection:
    """How to reach a schema registry: the options of CREATE CONNECTION … TO REGISTRY."""

    registry_url: str | None = option(
        PLACE, "The schema registry (`http://…` or `https://…`) that has the messages' schemas.", default=None
    )
    registry_user: str | None = option(PLACE, "Who logs in there.", default=None)
    registry_password: Secret | None = option(SECRET, "The password, by reference.", default=None)
    registry_token: Secret | None = option(SECRET, "A bearer token instead, by reference.", default=None)
    registry_ca: str | None = option(
        PLACE, "The certificates to trust, as PEM, by reference; without it, those of this machine.", default=None
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` if options do not go together."""
        if (self.registry_user is None) != (self.registry_password is None):
            raise ValueError("options 'registry_user' and 'registry_password' go together")
        if self.registry_token is not None and self.registry_user is not None:
            raise ValueError("give either 'registry_token' or 'registry_user': one login is sent")

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`."""
        return of_url(self.registry_url)


@dataclass(frozen=True, kw_only=True)
class KafkaOptions(KafkaConnection, RegistryConnection):
    """Which topic is read, and as what.

    >>> given = KafkaOptions(servers="k:9092", topic="t", format=MessageEncoding.CSV, include_offset="n")
    >>> given.decoding.included, given.decoding.delimiter
    ({'n': <Metadata.OFFSET: 'offset'>}, ',')
    """

    topic: str = option(TEXT, "The topic.")
    group: str | None = option(
        TEXT,
        "The consumer group whose offsets say what is durable here; without it, one of the source's own.",
        default=None,
    )
    start: Start = option(
        one_of(Start), "Where the partitions begin that are there when the source is made.", default="earliest"
    )
    format: MessageEncoding = option(one_of(MessageEncoding), "How the value is encoded.", default="json")
    key_format: MessageEncoding | None = option(
        one_of(MessageEncoding), "How the key is encoded; without it, it is not looked at.", default=None
    )
    key: tuple[str, ...] = option(COLUMNS, "The columns of the key, with commas between them.", default=None)
    envelope: Shape = option(
        one_of(Shape),
        "What a message says: `none`, that there is a row; `upsert`, what the row of its key is now (no value: it is "
        "gone); `debezium`, what a row was before and is after.",
        default="none",
    )
    include_key: str | None = option(TEXT, "The column that gets the message's key.", default=None)
    include_partition: str | None = option(TEXT, "The column that gets its partition.", default=None)
    include_offset: str | None = option(TEXT, "The column that gets its offset.", default=None)
    include_timestamp: str | None = option(TEXT, "The column that gets its timestamp.", default=None)
    include_headers: str | None = option(TEXT, "The column that gets its headers.", default=None)
    include_topic: str | None = option(TEXT, "The column that gets the topic.", default=None)
    framed: bool | None = option(
        FLAG, "Values begin with the id of their schema; without it, they do if there is a registry.", default=None
    )
    key_framed: bool | None = option(FLAG, "The same of keys.", default=None)
    avro_schema: str | None = option(
        PLACE,
        "Avro: the schema of values, as JSON or by reference; with a registry, the one to read them as.",
        default=None,
    )
    key_avro_schema: str | None = option(PLACE, "Avro: the same of keys.", default=None)
    descriptor: str | None = option(
        TEXT, "Protobuf: the file of a descriptor set (`protoc --include_imports --descriptor_set_out`).", default=None
    )
    message: str | None = option(TEXT, "Protobuf: the full name of the value's message type.", default=None)
    key_message: str | None = option(TEXT, "Protobuf: the same of keys.", default=None)
    delimiter: str | None = option(
        CHARACTER, "CSV: what is between fields (`tab` is known); without it `,`.", default=None
    )
    quote: str | None = option(CHARACTER, 'CSV: what a field may stand in; without it `"`.', default=None)
    escape: str | None = option(
        CHARACTER, "CSV: what is before a quote inside quotes; without it the quote itself.", default=None
    )
    nulls: str | None = option(ANY_TEXT, "CSV: the token that stands for NULL besides the empty field.", default=None)
    timestamp_format: str | None = option(ANY_TEXT, "CSV and JSON: Spark's pattern of timestamps.", default=None)
    date_format: str | None = option(ANY_TEXT, "CSV and JSON: Spark's pattern of dates.", default=None)
    small_messages_max: int = option(
        COUNT,
        "Up to so many messages a step, and up to 16 MiB, are fetched by this process; more are read by Spark, if it "
        "has its Kafka connector.",
        default=SMALL_MESSAGES_DEFAULT,
    )

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`: the brokers, and the registry."""
        return (*KafkaConnection.addresses(self), *RegistryConnection.addresses(self))

    def __post_init__(self) -> None:
        """Raise `ValueError` if options do not go together, or one does not go with the format."""
        KafkaConnection.__post_init__(self)
        RegistryConnection.__post_init__(self)
        encodings = {self.format, self.key_format}
        if MessageEncoding.CSV not in encodings:
            self._refuse(_OF_CSV)
        if not encodings & {MessageEncoding.CSV, MessageEncoding.JSON}:
            self._refuse(_OF_TEXT)
        if self.framed and self.format is MessageEncoding.AVRO and self.registry_url is None:
            raise ValueError("option 'framed' needs 'registry_url': the schema of a message is known by its id alone")
        wanted = list(self._included)
        if len(set(wanted)) < len(wanted):
            raise ValueError("two of the options include_… name one column")

    def _refuse(self, names: tuple[str, ...]) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"option {name!r} does not go with format {self.format.value!r}")

    @property
    def _included(self) -> list[str]:
        return [name for each in Metadata if (name := getattr(self, INCLUDE + each.value)) is not None]

    @property
    def is_framed(self) -> bool:
        """Whether values begin with the id of a schema."""
        return self._frames(self.framed, self.format)

    @property
    def is_key_framed(self) -> bool:
        """Whether keys do."""
        return self.key_format is not None and self._frames(self.key_framed, self.key_format)

    def _frames(self, said: bool | None, encoding: MessageEncoding) -> bool:
        if said is not None:
            return said
        return self.registry_url is not None and not encoding.single and encoding is not MessageEncoding.CSV

    @property
    def decoding(self) -> MessageFormat:
        """How to decode the messages, but for the schemas that a registry has and for the descriptor set."""
        quote = self.quote or '"'
        return MessageFormat(
            self.format,
            self.envelope,
            self.key or (),
            self.key_format,
            {name: each for each in Metadata if (name := getattr(self, INCLUDE + each.value)) is not None},
            framed=self.is_framed,
            avro_schema=self.avro_schema,
            message=self.message,
            key_framed=self.is_key_framed,
            key_avro_schema=self.key_avro_schema,
            key_message=self.key_message,
            delimiter=self.delimiter or ",",
            quote=quote,
            escape=self.escape or quote,
            null=self.nulls or "",
            timestamp_format=self.timestamp_format,
            date_format=self.date_format,
        )

    def descriptor_set(self) -> bytes | None:
        """Read the descriptor set.  Raises `ConfigError` if it cannot be read."""
        if self.descriptor is None:
            return None
        try:
            return Path(self.descriptor).read_bytes()
        except OSError as error:
            raise ConfigError(f"the descriptor set {self.descriptor!r} cannot be read: {error.strerror}") from None


assert {each.name for each in fields(KafkaOptions)} >= {INCLUDE + each.value for each in Metadata}


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
