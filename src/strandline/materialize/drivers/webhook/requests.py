"""The requests of a transaction: their content, their identity, their signature.

A request has changes of one resource, of one transaction, in their order.  Its *id* names them: the task, the data
behind the resource, the transaction, and the places of its first and last change.  A transaction that is replayed has
the same changes in the same order (`rows.sorting`), so under the same options it has the same requests, byte for byte.
If options have changed meanwhile, a request has other changes, and so another id: a receiver drops none that it has not
seen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import xxhash

from strandline.store.secret import Secret

STANDARD: Final = "whsec_"
"""What the text of a secret begins with whose bytes follow as base64."""
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Transaction:
    """Which transaction: of which task, into which resource, from which data (a state key), and its number."""

    task: str
    resource: str
    data: str
    number: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request."""

    id: str
    body: bytes
    of: Transaction
    first: int
    last: int

    def __str__(self) -> str:
        return (
            f"changes {self.first} to {self.last} of transaction {self.of.number} into {self.of.resource!r} "
            f"(Idempotency-Key {self.id})"
        )


def requests(
    transaction: Transaction, changes: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int
) -> Iterator[Outgoing]:
    """Yield the requests of a transaction; a change that alone has too many bytes has a request of its own."""
    some: list[bytes] = []
    size, first = 0, 0
    for each in _texts(changes):
        if some and (len(some) == rows_max or size + len(each) > bytes_max):
            yield _outgoing(transaction, first, some)
            first += len(some)
            some, size = [], 0
        size += len(each) + 1 if some else len(_outgoing(transaction, first, [each]).body)
        some.append(each)
    if some:
        yield _outgoing(transaction, first, some)


def _texts(changes: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in changes:
        keys, values = (batch[name].to_pylist() for name in ("key", "value"))
        for key, value in zip(keys, values, strict=True):
            named = "" if key is None else f'"key":{key},'
            yield f'{{{named}"value":{value or "null"}}}'.encode()


def _outgoing(of: Transaction, first: int, changes: list[bytes]) -> Outgoing:
    last = first + len(changes) - 1
    head = {"task": of.task, "resource": of.resource, "data": of.data, "transaction": of.number, "ordinal": first}
    body = _encode(head)[:-1] + b',"changes":[' + b",".join(changes) + b"]}"
    whole = xxhash.xxh3_128_hexdigest(_encode([of.task, of.data]))
    return Outgoing(f"{whole}-{of.number}-{first}-{last}", body, of, first, last)


def signature(secret: Secret, request_id: str, at: int, body: bytes) -> str:
    """Return the signature of a request sent at ``at``, in seconds, as Standard Webhooks says.

    Source: https://github.com/standard-webhooks/standard-webhooks (its specification).

    >>> signature(Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
    ...           b'{"test": 2432232314}')
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    signed = f"{request_id}.{at}.".encode() + body
    digest = hmac.new(key_of(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def key_of(secret: Secret) -> bytes:
    """Return the bytes of a signing secret.  Raises `ValueError` if it is not the base64 that it says it is."""
    text = secret.reveal()
    if not text.startswith(STANDARD):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(STANDARD), validate=True)
    except binascii.Error:
        raise ValueError(f"option 'signing_secret' begins with {STANDARD}, and no base64 follows") from None
