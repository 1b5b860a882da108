"""The grammar, from either side of the stream."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.errors import ProtocolViolation
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Conversation,
    Flush,
    Flushed,
    Load,
    Loaded,
    Message,
    Open,
    Opened,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE

ROWS = pa.table({})
OPEN = Open(None, "", WHOLE, {})  # type: ignore[arg-type]
BEGUN: tuple[Message, ...] = (OPEN, Opened(None))
READY: tuple[Message, ...] = (*BEGUN, Acknowledge(), Acknowledged())
STORING: tuple[Message, ...] = (*READY, Flush(), Flushed())
COMMITTED: tuple[Message, ...] = (*STORING, StartCommit(NOTHING), StartedCommit())


def say(*messages: Message) -> Conversation:
    """Return the conversation of these messages."""
    conversation = Conversation()
    for message in messages:
        conversation = conversation.then(message)
    return conversation


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((*COMMITTED, Acknowledge(), Acknowledged(), Flush()), id="Acknowledge first"),
        pytest.param((*COMMITTED, Acknowledged(), Acknowledge(), Flush()), id="Acknowledged first"),
        pytest.param(
            (*BEGUN, Acknowledge(), Load(0, ROWS), Acknowledged(), Loaded(0, ROWS)), id="Load before Acknowledged"
        ),
        pytest.param(
            (*READY, Load(0, ROWS), Flush(), Loaded(0, ROWS), Flushed(), Store(0, ROWS)), id="Loaded after Flush"
        ),
    ],
)
def test_what_the_protocol_allows(messages: tuple[Message, ...]) -> None:
    """Damage: a correct peer is refused."""
    say(*messages)


@pytest.mark.parametrize(
    ("before", "message", "said"),
    [
        ((), Acknowledge(), "Acknowledge came when nothing was said"),
        (BEGUN, Flush(), "Flush came when a transaction is open, before Acknowledge and Acknowledged"),
        ((*BEGUN, Acknowledge()), Flush(), "Flush came when a transaction is open, before Acknowledged"),
        ((*BEGUN, Acknowledge()), Acknowledge(), "Acknowledge came"),
        (READY, Acknowledged(), "Acknowledged came"),
        (BEGUN, Load(0, ROWS), "Load came"),
        ((*BEGUN, Acknowledge(), Load(0, ROWS)), Loaded(0, ROWS), "Loaded came .* before Acknowledged"),
        ((*READY, Load(0, ROWS)), Loaded(1, ROWS), "Loaded came"),
        (READY, Store(0, ROWS), "Store came"),
        ((*READY, Flush()), Store(0, ROWS), "Store came when Flush was sent"),
        (STORING, Loaded(0, ROWS), "Loaded came when Flushed was received"),
        (STORING, Flushed(), "Flushed came"),
        (READY, StartCommit(NOTHING), "StartCommit came"),
        ((*STORING, StartCommit(NOTHING)), Acknowledged(), "Acknowledged came when StartCommit was sent"),
        (COMMITTED, Flush(), "Flush came"),
        (BEGUN, OPEN, "Open came"),
        (BEGUN, Opened(None), "Opened came"),
    ],
)
def test_what_the_protocol_forbids_names_message_and_place(
    before: tuple[Message, ...], message: Message, said: str
) -> None:
    """Damage: a peer's bug becomes wrong data here."""
    conversation = say(*before)
    with pytest.raises(ProtocolViolation, match=said):
        conversation.then(message)
