"""What very many appends leave behind is bounded, and the benchmark measures all that it promises."""

from __future__ import annotations

from pathlib import Path

from strandline.bench.appends import append_and_open

GROWTH = 1_500
STATE_BYTES_MAX = 64 << 10
PARTS_MAX = 64
BLOB_RATIO_MAX = 2.0


def test_a_shard_stays_small_however_often_it_is_appended_to(tmp_path: Path) -> None:
    """Damage: a shard that lives for years can no longer be opened, planned or paid for."""
    figures = append_and_open(tmp_path, appends=20, growth=GROWTH)

    assert figures["state_bytes_after_n"] <= STATE_BYTES_MAX
    assert figures["parts_after_n"] <= PARTS_MAX
    assert figures["blob_bytes_ratio"] <= BLOB_RATIO_MAX
    assert figures["growth_appends"] == GROWTH
    assert figures["idle_ms_p50"] > 0
