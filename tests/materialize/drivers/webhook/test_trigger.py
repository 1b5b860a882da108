"""A trigger is one POST over real HTTP, and what its answer means."""

from __future__ import annotations

import asyncio

import pytest
from tests.materialize.drivers.webhook.receiving import CUT, Answer, receiving

from strandline.errors import ConfigError, DefinitionError
from strandline.wiring.registry import trigger


def test_a_trigger_is_posted_with_its_key() -> None:
    """Damage: what waits for new rows never begins, or begins twice."""
    with receiving() as receiver:
        assert asyncio.run(trigger(receiver.url)(b'{"checkpoint":7}', "m-7")) == ""
        (got,) = receiver.got
        assert (got.said, got.id, got.path) == ({"checkpoint": 7}, "m-7", "/hooks?of=shop")


@pytest.mark.parametrize(
    ("answer", "said"),
    [(Answer(503, text="busy"), "answers 503: busy"), (Answer(404), "answers 404"), (CUT, "does not answer")],
)
def test_what_is_not_taken_is_said_without_what_may_be_secret(answer: Answer, said: str) -> None:
    """Damage: a call that was refused counts as made; or a problem shows the secret path of a hook."""
    with receiving() as receiver:
        receiver.answer = lambda _: answer
        refusal = asyncio.run(trigger(receiver.url)(b"{}", "k"))
        assert said in refusal
        assert refusal.startswith("http://localhost:")
        assert "hooks" not in refusal


def test_what_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a typing error is found by the first transaction; or the message shows what a reference stands for."""
    with pytest.raises(DefinitionError, match="must be a URL"):
        trigger("example.org/hook")
    monkeypatch.setenv("HOOK", "hunter2")
    with pytest.raises(DefinitionError) as refused:
        trigger("env:HOOK")
    assert "hunter2" not in str(refused.value)
    monkeypatch.delenv("HOOK")
    with pytest.raises(ConfigError, match="HOOK"):
        trigger("env:HOOK")
