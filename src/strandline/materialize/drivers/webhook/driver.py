"""A webhook: a transaction's changes are posted, and the runtime's log commits once the receiver has them (pattern 4).

Delivery is at least once.  A crash between the last answer and the commit replays the transaction: the same requests
under the same `Idempotency-Key`, by which a receiver drops requests that it has.

All changes of a transaction are known before the first is sent, because they need an order that a replay has too
(`drivers.rows`); until then they are spooled.

A request has changes of one resource, of one transaction, in their order.  Its *id* names the task, the data behind the
resource, the transaction, and the places of its first and last change.  Under the same options, a replayed transaction
has the same requests, byte for byte.  If options have changed meanwhile, a request has other changes and therefore
another id: a receiver drops no request that it has not seen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import xxhash

from strandline.errors import ConfigError, DefinitionError, InvalidUsage, ProtocolViolation, Unavailable
from strandline.materialize.driver import Answers, Applied, Contents, DriverKind, DriverSpec, Session, Validated
from strandline.materialize.drivers.rows import TRANSACTIONS, joined, label, ordered, push_only, texts
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.drivers.webhook.options import WebhookEndpoint, WebhookResource
from strandline.materialize.drivers.webhook.receiver import Meaning, Receiver, Reply
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Conversation,
    Flush,
    Flushed,
    Load,
    Open,
    Opened,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec, StateUpdate
from strandline.materialize.spool import Spool
from strandline.problem import Problem, Stopped, Way
from strandline.store.clock import Clock
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


BACKOFF_SECONDS_MAX: Final = 60.0

NOT_A_RECEIVER: Final = Problem(
    "webhook-elsewhere",
    "{origin} {reply}: the URL or the token is not right",
    Stopped.ENDPOINT,
    (
        Way("mend what listens there: it is sent again"),
        Way("drop the materialization, and create it with the right option 'url' or 'token'"),
    ),
)
REFUSED: Final = Problem(
    "webhook-refused",
    "{origin} {reply}: it refuses {request}",
    Stopped.ENDPOINT,
    (
        Way("mend the receiver, and the task sends them again"),
        Way(
            "drop the materialization, and create it with option 'dead_letters', a directory which keeps such "
            "requests, and the task goes on"
        ),
    ),
)
NO_PLACE: Final = Problem(
    "dead-letters-unkept",
    "dead letters cannot be kept in {directory}: {why}",
    Stopped.ENDPOINT,
    (Way("make room there, or let this process write there"),),
)


class WebhookDriver:
    """The driver of one receiver."""

    def __init__(self, options: WebhookEndpoint, clock: Clock) -> None:
        self._options = options
        self._clock = clock

    async def spec(self) -> DriverSpec:
        """Return which configuration this driver takes."""
        return KIND.spec

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Return the verdict on each binding; asks no receiver."""
        return tuple(push_only(binding, "a webhook") for binding in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Do nothing: a receiver has no resources."""
        return Applied()

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return nothing: `apply` changes nothing."""
        return ()

    def joined(self, states: Sequence[Any]) -> Any:
        """See `JoinsStates.joined`."""
        return joined(states)

    async def open(self) -> Session:
        """Start a conversation; no receiver is asked before `StartCommit`."""
        return WebhookSession(self._options, self._clock)

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Raise `InvalidUsage`: a receiver cannot be asked what it has made of the changes."""
        raise InvalidUsage(f"{self._options.origin} cannot be asked which rows of {binding.resource!r} it has")


class WebhookSession:
    """One conversation: it spools changes, and sends them when the transaction is complete."""

    def __init__(self, options: WebhookEndpoint, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._receiver = Receiver(options)
        self._said = Conversation()
        self._answers = Answers()
        self._bindings: tuple[Binding, ...] = ()
        self._task = ""
        self._committed: dict[str, int] = {}
        self._changes: dict[int, Spool] = {}

    async def send(self, message: Request) -> None:
        """Check and process a message."""
        self._said = self._said.then(message)
        match message:
            case Open(spec=spec, range=range_, state=state):
                self._bindings, self._task = spec.bindings, label(spec.name, range_)
                self._committed = dict((state or {}).get(TRANSACTIONS, {}))
                self._answer(Opened(None))
                self._answer(Acknowledged())  # nothing is ever staged
            case Acknowledge():
                pass
            case Load(binding):
                raise ProtocolViolation(f"Load of binding {binding} came, whose endpoint can only be pushed to")
            case Flush():
                self._answer(Flushed())
            case Store(binding, rows):
                spool, bound = self._changes.setdefault(binding, Spool()), self._bindings[binding]
                await to_its_end(lambda: spool.add(texts(bound, rows)))
            case StartCommit():
                await self._commit()

    async def receive(self) -> Response:
        """Return the next answer."""
        return await self._answers.take()

    async def close(self) -> None:
        """Drop what was not sent."""
        self._receiver.close()
        for spool in self._changes.values():
            spool.close()
        self._changes.clear()

    def _answer(self, message: Response) -> None:
        self._said = self._said.then(message)
        self._answers.put(message)

    async def _commit(self) -> None:
        numbers = {each.state_key: self._committed.get(each.state_key, 0) + 1 for each in self._bindings}
        changes, self._changes = self._changes, {}
        for place, binding in enumerate(self._bindings):
            spool = changes.get(place)
            if spool is not None:
                number = numbers[binding.state_key]
                await self._push(Transaction(self._task, binding.resource, binding.state_key, number), spool)
        self._receiver.close()  # receivers end connections that rest, and the next one should not meet such an end
        self._committed = numbers
        self._answer(StartedCommit(StateUpdate({TRANSACTIONS: numbers})))
        self._answer(Acknowledged())

    async def _push(self, transaction: Transaction, spool: Spool) -> None:
        given = self._options
        with closing(spool), closing(ordered(spool, given.batch_rows)) as changes:
            pending: Iterator[Outgoing] = requests(transaction, changes, given.batch_rows, given.max_request_size)
            while (request := await to_its_end(lambda: next(pending, None))) is not None:
                await self._deliver(request)

    async def _deliver(self, request: Outgoing) -> None:
        """Send a request until the receiver has taken or refused it."""
        backoff, origin = self._options.retry_backoff / 1000, self._options.origin
        left = self._options.max_retries
        while (reply := await self._post(request)).meaning is Meaning.LATER:
            if not left:
                raise Unavailable(f"{origin} {reply}; {request} were sent {self._options.max_retries + 1} times")
            left -= 1
            await self._clock.sleep(max(backoff, reply.pause(self._clock.now_ms())))
            backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)
        if reply.meaning is Meaning.ELSEWHERE:
            raise ConfigError(NOT_A_RECEIVER.said(origin=origin, reply=reply))
        if reply.meaning is Meaning.REFUSED:
            await self._bury(request, reply)

    async def _post(self, request: Outgoing) -> Reply:
        headers = self._headers(request)
        return await to_its_end(lambda: self._receiver.post(request.body, headers))

    def _headers(self, request: Outgoing) -> dict[str, str]:
        at = self._clock.now_ms() // 1000
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "strandline",
            "Idempotency-Key": request.id,
            "webhook-id": request.id,
            "webhook-timestamp": str(at),
        }
        if self._options.signing_secret is not None:
            headers["webhook-signature"] = signature(self._options.signing_secret, request.id, at, request.body)
        return headers

    async def _bury(self, request: Outgoing, reply: Reply) -> None:
        """Keep a request that was refused, or raise `DefinitionError` if there is no place for it."""
        if self._options.dead_letters is None:
            raise DefinitionError(REFUSED.said(origin=self._options.origin, reply=reply, request=request))
        kept = Path(self._options.dead_letters) / f"{request.id}.json"

        def write() -> None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            new = kept.with_suffix(".new")
            new.write_bytes(request.body)
            new.replace(kept)
            kept.with_suffix(".reason").write_text(f"{reply}\n")

        try:
            await to_its_end(write)
        except OSError as error:
            raise ConfigError(NO_PLACE.said(directory=kept.parent, why=error.strerror)) from error


def _open(options: WebhookEndpoint, clock: Clock) -> WebhookDriver:
    if options.signing_secret is not None:
        try:
            key_of(options.signing_secret)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return WebhookDriver(options, clock)


KIND: Final = DriverKind("webhook", WebhookEndpoint, WebhookResource, "docs/endpoints/webhook.md", _open)
