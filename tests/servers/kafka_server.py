"""A Kafka of our own: one broker, its own controller, in a temporary directory, gone when the tests are.

It listens on loopback: plainly, and with TLS and passwords (SASL PLAIN and SCRAM) on a port of its own.  The jars are
those that `tools/setup --servers` provides.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from stopping import freeze

from strandline.testing import topics

PR_SET_PDEATHSIG: Final = 1
"""Linux: send me a signal when my parent dies."""
USER: Final = "reader"
PASSWORD: Final = "not-a-secret"
START_SECONDS_MAX: Final = 240
CLUSTER: Final = "c3RyYW5kbGluZS10ZXN0cw"
JAVA: Final = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")


@dataclass
class KafkaServer:
    """One broker, which runs after `start`."""

    directory: Path
    jars: Path
    port: int
    guarded_port: int
    controller_port: int
    process: subprocess.Popen[bytes] | None = None
    _admins: list[AdminClient] = field(default_factory=list)

    @property
    def servers(self) -> str:
        """Where it answers anyone."""
        return f"127.0.0.1:{self.port}"

    @property
    def guarded(self) -> str:
        """Where it speaks TLS and wants `USER` and `PASSWORD`."""
        return f"127.0.0.1:{self.guarded_port}"

    @property
    def certificate(self) -> Path:
        """What a client must trust to speak TLS with it."""
        return self.directory / "certificate.pem"

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._java("kafka.Kafka", str(self.directory / "server.properties")),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one call of libc, in a process with no lock of ours
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the broker does not start: {(self.directory / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """End it as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

    def revive(self) -> None:
        """Start it on the same ports, if it does not run."""
        if self.process is None:
            self.start()

    def freeze(self) -> None:
        """Stop it from running: it neither answers nor closes a connection."""
        if self.process is not None:
            freeze([self.process.pid])

    def thaw(self) -> None:
        """Let it go on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(180)
            self.process = None

    def _answers(self) -> bool:
        try:
            with closing(socket.create_connection(("127.0.0.1", self.port), timeout=1)):
                pass
            self.admin.list_topics(timeout=5)
        except (OSError, KafkaException):
            return False
        return True

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [*java(), *JAVA, "-cp", f"{self.jars}/*", main, *arguments]

    # --- what tests do with it ----------------------------------------------------------------------------------------
    @property
    def admin(self) -> AdminClient:
        """A client that may do everything."""
        if not self._admins:
            self._admins.append(topics.admin(self.servers))
        return self._admins[0]

    def make_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Make a topic; ``config`` names Kafka's settings, with ``_`` for the dots."""
        topics.make(self.admin, topic, partitions, {name.replace("_", "."): text for name, text in config.items()})

    def drop_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        topics.drop(self.admin, topic)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        topics.grow(self.admin, topic, partitions)

    def delete_records(self, topic: str, offsets: dict[int, int]) -> None:
        """Forget what is before ``offsets``, by partition, as retention does."""
        before = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        topics.done(self.admin.delete_records(before))

    def producer(self, **settings: Any) -> Producer:
        """Return a producer."""
        return topics.producer(self.servers, **settings)

    def produce(self, topic: str, values: Sequence[bytes | str | None], *, partition: int = 0, **others: Any) -> None:
        """Append messages with these values, durably; ``others`` are arguments of ``Producer.produce``."""
        topics.produce(self.producer(), topic, values, [partition], **others)


def jars(what: str) -> Path | None:
    """Return the directory of jars ``what`` (``kafka-broker``, …), or None if it is not there."""
    root = os.environ.get("STRANDLINE_JARS")
    directory = (Path(root) if root else Path(sys.prefix) / "var" / "jars") / what
    return directory if directory.is_dir() else None


def java() -> tuple[str, ...]:
    """Return the command that starts Java."""
    home = os.environ.get("JAVA_HOME")
    return (str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java",)


def make(directory: Path, broker_jars: Path) -> KafkaServer:
    """Make a broker below ``directory``, which is empty."""
    server = KafkaServer(directory, broker_jars, *(_free_port() for _ in range(3)))
    keys = directory / "keys.p12"
    keytool = str(Path(java()[0]).with_name("keytool"))
    store = ["-keystore", str(keys), "-storetype", "PKCS12", "-storepass", PASSWORD, "-alias", "broker"]
    name = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost", "-validity", "2"]
    _run([keytool, "-genkeypair", "-keyalg", "RSA", *store, *name], directory)
    _run([keytool, "-exportcert", "-rfc", "-file", str(server.certificate), *store], directory)
    properties = directory / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in _settings(server, keys).items()))
    scram = ["--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"]
    _run([*server._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties), *scram)], directory)
    return server


def _settings(server: KafkaServer, keys: Path) -> dict[str, str]:
    guarded, module = "listener.name.guarded", "org.apache.kafka.common.security"
    here = "127.0.0.1"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{here}:{server.controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAIN://{here}:{server.port},GUARDED://{here}:{server.guarded_port},"
        f"CONTROLLER://{here}:{server.controller_port}",
        "advertised.listeners": f"PLAIN://{here}:{server.port},GUARDED://{here}:{server.guarded_port}",
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,GUARDED:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAIN",
        f"{guarded}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        f"{guarded}.plain.sasl.jaas.config": f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        f"{guarded}.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        f"{guarded}.ssl.keystore.type": "PKCS12",
        f"{guarded}.ssl.keystore.location": str(keys),
        f"{guarded}.ssl.keystore.password": PASSWORD,
        "log.dirs": str(server.directory / "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.backoff.ms": "100",
        "log.initial.task.delay.ms": "100",
        "log.retention.ms": "-1",  # tests write messages of long ago
    }


def die_with_parent() -> None:
    """Have a child end with the process that started it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # tests that are killed leave no server


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}")


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
