"""A connector's state and what was applied last are kept as one, and changed as the connector says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptionError, ProtocolViolation
from strandline.materialize.log import RESTART
from strandline.materialize.protocol.task import StateUpdate
from strandline.materialize.wire.codec import ConnectorState, MaterializationSpec
from strandline.materialize.wire.state import Kept, update_of

STATES = st.recursive(
    st.none() | st.integers() | st.text("ab"),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", RESTART]), inner, max_size=3),
    max_leaves=6,
)


@given(STATES, st.lists(st.tuples(STATES, st.booleans()), max_size=4))
def test_the_log_follows_the_connector(first: Any, updates: list[tuple[Any, bool]]) -> None:
    """Damage: after a crash a connector gets another state than its last one, and applies rows twice or never."""
    connector: Any = {} if first is None else first
    kept, whole = Kept(connector, {"version": "v", "spec": ""}), Kept(connector, {"version": "v", "spec": ""}).whole
    for value, merge in updates:
        update = StateUpdate(value, merge)
        connector = update.apply(connector)
        kept, wrapped = kept.updated(update)
        whole = wrapped.apply(whole)
        found = Kept.of(whole)
        assert found.connector == ({} if connector is None else connector)
        assert found.version == "v"
        assert whole.get(RESTART) == (connector.get(RESTART) if isinstance(connector, dict) else None)


def test_what_was_applied_comes_back_without_its_secrets() -> None:
    """Damage: a password is in the recovery log; or a connector does not see that a binding is to be filled anew."""
    spec = MaterializationSpec(name="m", config_json=b'{"password":"hunter2"}', bindings=[{"backfill": 3}])
    kept = Kept.of(Kept().with_applied(spec, "v1").whole)
    assert "hunter2" not in str(kept.whole)
    last = kept.last(b'{"password":"new"}')
    assert last.bindings[0].backfill == 3
    assert (kept.version, last.config_json) == ("v1", b'{"password":"new"}')
    assert Kept().last(b"{}") is None


@pytest.mark.parametrize("text", ["*", "AAAA", ""])
def test_a_damaged_specification_is_named(text: str) -> None:
    """Damage: a connector takes damaged bytes for what it applied."""
    with pytest.raises(CorruptionError, match="damaged"):
        Kept({}, {"version": "v", "spec": text}).last(b"{}")


def test_a_state_that_is_not_json_is_a_violation() -> None:
    """Damage: the recovery log holds a state that no session can be opened with."""
    with pytest.raises(ProtocolViolation, match="not JSON"):
        update_of(ConnectorState(updated_json=b"{"))
    assert update_of(ConnectorState()) is None
    assert update_of(ConnectorState(updated_json=b"null")) == StateUpdate(None)
