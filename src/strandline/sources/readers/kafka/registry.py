"""A client of schema registries that speak Confluent's API, and the message fields that a schema lacks.

The client returns the schema of an id and the ids of a subject.  The meaning of an id never changes, so it is asked for
once.  A question that is still unanswered is not asked again: a registry that hangs holds one thread of ours.  Schemas
that refer to others are asked for with these put in (``format=resolved``).

Fields that values have and a schema lacks are found in JSON by looking at the values, in Avro by the schemas.  In a
change as Debezium writes it they are the fields of ``after``.  A field that is null, or not sent, is ignored: its
column would be NULL, and its type is not known.

Source: https://docs.confluent.io/platform/current/schema-registry/develop/api.html.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

from strandline.algebra.messages import FRAME_BYTES, MessageFormat, Shape
from strandline.algebra.schema import Column, Schema
from strandline.algebra.unavailable import PLACEHOLDER
from strandline.connections.kafka import ANSWER_SECONDS_MAX
from strandline.errors import ConfigError, Unavailable, first_line
from strandline.sources.readers.avro_columns import columns_of
from strandline.sources.readers.kafka.broker import CALL_SECONDS_MAX, Lane
from strandline.sources.readers.kafka.options import RegistryConnection
from strandline.sources.readers.new_columns import new_columns
from strandline.sources.readers.sampled import JsonSample, of_objects

ANSWER_BYTES_MAX: Final = 16 << 20
_OK, _ABSENT = 200, 404
_NO_SCHEMA, _NO_SUBJECT, _NO_VERSION = 40403, 40401, 40402


class Registry:
    """One registry."""

    def __init__(self, at: RegistryConnection) -> None:
        self._where = _where(at.registry_url or "")
        self._shown = f"the schema registry at {self._where.scheme}://{self._where.netloc}"
        self._lane = Lane(self._shown)
        self._at = at
        self._schemas: dict[int, str] = {}
        self._absent: set[int] = set()

    async def schemas(self, ids: Iterable[int], seconds: float = CALL_SECONDS_MAX) -> dict[int, str]:
        """Return the schemas of those of ``ids`` that there are.

        Raises `Unavailable` if the registry does not answer within ``seconds``, or does not allow it.
        """
        wanted = sorted(ids)
        self._absent.clear()  # what is not there may come: a producer may be quicker than a replica of the registry
        for each in wanted:
            if each not in self._schemas:
                body = await self._get(f"/schemas/ids/{each}?format=resolved", f"the schema {each}", seconds)
                if body is None:
                    self._absent.add(each)
                else:
                    self._schemas[each] = str(body["schema"])
        return {each: self._schemas[each] for each in wanted if each not in self._absent}

    async def of_subject(self, subject: str, seconds: float = CALL_SECONDS_MAX) -> dict[int, str]:
        """Return the schemas of all versions of a subject; none, if there is no such subject.  Raises as `schemas`."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        versions = await self._get(path, f"the versions of {subject!r}", seconds)
        ids = []
        for version in versions or ():
            found = await self._get(f"{path}/{version}", f"version {version} of {subject!r}", seconds)
            if found is not None:
                ids.append(int(found["id"]))
        return await self.schemas(ids, seconds)

    async def subjects(self) -> list[str]:
        """Return all subjects."""
        return [str(each) for each in await self._get("/subjects", "the subjects") or ()]

    async def newest(self, subject: str) -> str | None:
        """Return the newest schema of a subject; None, if there is no such subject."""
        found = await self._get(f"/subjects/{quote(subject, safe='')}/versions/latest", f"the schema of {subject!r}")
        return None if found is None else str(found["schema"])

    async def _get(self, path: str, what: str, seconds: float = CALL_SECONDS_MAX) -> Any:
        """Return the answer as it is in JSON; None: there is no such thing."""
        try:
            status, body = await self._lane.run(partial(self._ask, path), seconds)
            answer = json.loads(body)
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(f"{self._shown} does not answer for {what}: {first_line(error)}") from None
        if status == _OK:
            return answer
        code = answer.get("error_code") if isinstance(answer, dict) else None
        if status == _ABSENT and code in {_NO_SCHEMA, _NO_SUBJECT, _NO_VERSION}:
            return None
        said = answer.get("message") if isinstance(answer, dict) else None
        raise Unavailable(f"{self._shown} refuses {what}: status {status}{f', {said}' if said else ''}")

    def _ask(self, path: str) -> tuple[int, bytes]:
        host, port = self._where.hostname or "", self._where.port
        if self._where.scheme == "https":
            trusted = ssl.create_default_context(cadata=self._at.registry_ca)
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=ANSWER_SECONDS_MAX, context=trusted)
        else:
            connection = HTTPConnection(host, port, timeout=ANSWER_SECONDS_MAX)
        try:
            connection.request("GET", self._where.path.rstrip("/") + path, headers=self._headers())
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._at.registry_token is not None:
            headers["Authorization"] = f"Bearer {self._at.registry_token.reveal()}"
        if self._at.registry_user is not None and self._at.registry_password is not None:
            pair = f"{self._at.registry_user}:{self._at.registry_password.reveal()}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return headers


def _where(url: str) -> SplitResult:
    with suppress(ValueError):
        where = urlsplit(url)
        if where.scheme in {"http", "https"} and where.hostname and not where.username and where.port != 0:
            return where
    raise ConfigError("registry_url is http://host:port or https://host:port; a user goes to registry_user")


_AFTER: Final = "after"


class JsonFields:
    """What the values of some messages have besides the columns of a schema."""

    def __init__(self, schema: Schema, form: MessageFormat) -> None:
        self._schema = schema
        self._known = frozenset(schema.names)
        self._form = form
        self._sample = JsonSample({})

    def see(self, values: Iterable[bytes | None]) -> None:
        """Take note of values; one that is no object says nothing."""
        self._sample = self._sample.joined(of_objects(self._unknown(values)))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The fields that were seen, as columns that the schema could have."""
        return new_columns(self._schema, self._sample.held)

    def _unknown(self, values: Iterable[bytes | None]) -> Iterator[dict[str, Any]]:
        for value in values:
            row = _row(value, self._form)
            if not row.keys() <= self._known:  # most often they are known
                yield {name: row[name] for name in row if name not in self._known and row[name] != PLACEHOLDER}


def _row(value: bytes | None, form: MessageFormat) -> Mapping[str, Any]:
    if value is None:
        return {}
    try:
        found = json.loads(value[FRAME_BYTES:] if form.framed else value)
    except (ValueError, RecursionError):
        return {}
    if form.shape is Shape.DEBEZIUM and isinstance(found, dict):
        found = found["payload"] if isinstance(found.get("payload"), dict) else found
        found = found.get(_AFTER)
    return found if isinstance(found, dict) else {}


def in_schemas(texts: Iterable[str], schema: Schema, form: MessageFormat) -> tuple[Column, ...]:
    """Return the columns that ``schema`` lacks and could have of Avro schemas, the newest last.

    Where the format has a schema to read them all as, its fields alone count.
    """
    fields: dict[str, str | None] = {}
    within = _AFTER if form.shape is Shape.DEBEZIUM else None
    for text in [form.avro_schema] if form.avro_schema is not None else texts:
        fields |= columns_of(text, within) or ()
    return new_columns(schema, fields.items())
