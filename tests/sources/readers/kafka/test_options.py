"""Options of a Kafka source: what goes together, and what both Kafka clients get of it."""

from __future__ import annotations

import confluent_kafka as kafka
import pytest

from strandline.algebra.messages import MessageEncoding, Metadata, Shape
from strandline.connections.kafka import KafkaConnection, for_client, protocol
from strandline.errors import ConfigError, DefinitionError
from strandline.options import understood
from strandline.sources.readers.kafka.options import KafkaOptions, RegistryConnection, for_consumer, for_spark
from strandline.store.secret import Secret, revealed

LEAST = {"servers": "k:9092", "topic": "t"}
LOGIN = {"sasl": "plain", "user": "me", "password": 'a"b\\c'}


def options(**texts: str) -> KafkaOptions:
    """Return the options that texts say."""
    return understood("source 's'", KafkaOptions, {**LEAST, **texts})


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"sasl": "plain"}, "'sasl', 'user' and 'password' go together"),
        ({"user": "me", "password": "env:P"}, "'sasl', 'user' and 'password' go together"),
        ({"tls_ca": "PEM"}, "'tls_ca' needs tls"),
        ({"tls": "true", "tls_certificate": "PEM"}, "'tls_certificate' and 'tls_private_key' go together"),
        ({"tls": "true", "tls_private_key_password": "env:P"}, "needs 'tls_private_key'"),
        ({"registry_token": "env:T", "registry_user": "me", "registry_password": "env:P"}, "one login is sent"),
        ({"registry_user": "me"}, "'registry_user' and 'registry_password' go together"),
        ({"format": "json", "delimiter": ";"}, "'delimiter' does not go with format 'json'"),
        ({"format": "avro", "date_format": "yyyy"}, "'date_format' does not go with format 'avro'"),
        ({"format": "avro", "framed": "true"}, "'framed' needs 'registry_url'"),
        ({"include_offset": "x", "include_partition": "x"}, "name one column"),
        ({"format": "xml"}, "it can be json, avro, protobuf, csv, text, bytes"),
        ({"sasl": "kerberos"}, "it can be plain, scram-sha-256, scram-sha-512"),
        ({"key": "a,,b"}, "names of columns with commas"),
        ({"small_messages_max": "many"}, "a number, 0 or more"),
        ({"topik": "t"}, "did you mean 'topic'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(texts: dict[str, str], said: str) -> None:
    """Damage: a source is defined that can never read a message."""
    with pytest.raises(DefinitionError, match=said):
        options(**texts)


def test_options_say_how_messages_are_decoded() -> None:
    """Damage: a clause of the statement has no effect."""
    form = options(
        format="csv", delimiter="tab", nulls="-", envelope="upsert", key="a, b", key_format="json", include_topic="t"
    ).decoding
    assert (form.encoding, form.shape, form.key) == (MessageEncoding.CSV, Shape.UPSERT, ("a", "b"))
    assert (form.key_encoding, form.included) == (MessageEncoding.JSON, {"t": Metadata.TOPIC})
    assert (form.delimiter, form.null) == ("\t", "-")


@pytest.mark.parametrize(
    ("texts", "framed"),
    [
        ({"format": "avro"}, (True, False)),
        ({"format": "json", "key_format": "avro"}, (True, True)),
        ({"format": "avro", "key_format": "text"}, (True, False)),
        ({"format": "json", "framed": "false", "key_format": "json"}, (False, True)),
        ({"format": "csv", "key_format": "json", "key_framed": "false"}, (False, False)),
    ],
)
def test_with_a_registry_bytes_begin_with_the_id_of_a_schema(texts: dict[str, str], framed: tuple[bool, bool]) -> None:
    """Damage: five bytes of each message are taken for data, or five bytes of data for a frame."""
    given = options(registry_url="http://r:8081", **texts)
    assert (given.is_framed, given.is_key_framed) == framed
    without = options(**{name: text for name, text in texts.items() if "framed" not in name})
    assert (without.is_framed, without.is_key_framed) == (False, False)


def test_both_clients_reach_the_cluster_in_the_same_way() -> None:
    """Damage: small steps work and large ones are refused, or the other way round; or one reads what was aborted."""
    at = options(tls="true", tls_ca="CA", tls_certificate="CERT", tls_private_key="KEY", **LOGIN)
    ours, spark = for_consumer(at, "g"), for_spark(at)
    assert ours["isolation.level"] == spark["kafka.isolation.level"] == "read_committed"
    assert ours["security.protocol"] == spark["kafka.security.protocol"] == "SASL_SSL"
    assert ours["bootstrap.servers"] == spark["kafka.bootstrap.servers"] == "k:9092"
    assert ours["ssl.ca.pem"] == spark["kafka.ssl.truststore.certificates"] == "CA"
    assert ours["ssl.key.pem"] == spark["kafka.ssl.keystore.key"] == Secret("KEY")
    jaas = revealed(spark)["kafka.sasl.jaas.config"]
    assert jaas.endswith('PlainLoginModule required username="me" password="a\\"b\\\\c";')
    assert "ScramLoginModule" in revealed(for_spark(options(**{**LOGIN, "sasl": "scram-sha-512"})))[
        "kafka.sasl.jaas.config"
    ]  # fmt: skip


def test_what_the_clients_take_reaches_both() -> None:
    """Damage: a cluster with encrypted keys, certificates of other names or racks cannot be read, or by one client."""
    at = options(tls="true", tls_certificate="CERT", tls_private_key="KEY", tls_private_key_password="P", rack="eu-1a")
    ours, spark = for_client(at), for_spark(at)
    assert ours["ssl.key.password"] == spark["kafka.ssl.key.password"] == Secret("P")
    assert ours["client.rack"] == spark["kafka.client.rack"] == "eu-1a"
    assert "ssl.endpoint.identification.algorithm" not in {**ours, **spark}
    lax = options(tls="true", tls_verify_host="false", rack="eu-1a")
    assert for_spark(lax)["kafka.ssl.endpoint.identification.algorithm"] == ""
    kafka.Consumer(revealed(for_consumer(lax, "g"))).close()  # it refuses a name or a value that it does not know


def test_secrets_are_not_shown() -> None:
    """Damage: a password is in a log line."""
    at = options(tls="true", tls_certificate="CERT", tls_private_key="KEY-TEXT", **LOGIN)
    for shown in (at, for_client(at), for_spark(at), for_consumer(at, "g")):
        assert "KEY-TEXT" not in repr(shown)
        assert LOGIN["password"] not in repr(shown)


@pytest.mark.parametrize(
    ("tls", "sasl", "name"),
    [(False, False, "PLAINTEXT"), (True, False, "SSL"), (False, True, "SASL_PLAINTEXT"), (True, True, "SASL_SSL")],
)
def test_how_the_two_ends_speak_has_kafkas_name(tls: bool, sasl: bool, name: str) -> None:
    """Damage: a password goes over a connection in the clear."""
    assert protocol(options(tls=str(tls).lower(), **(LOGIN if sasl else {}))) == name


def test_a_connection_has_options_that_a_source_has_too() -> None:
    """Damage: what a connection says is unknown to the source that uses it."""
    assert issubclass(KafkaOptions, KafkaConnection)
    assert issubclass(KafkaOptions, RegistryConnection)


def test_a_descriptor_set_that_is_not_there_is_named() -> None:
    """Damage: a missing file looks like a fault of Kafka's."""
    with pytest.raises(ConfigError, match="'/none' cannot be read: No such file"):
        options(descriptor="/none").descriptor_set()
