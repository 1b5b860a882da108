"""Fixtures: a console over figures, and a certificate."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from console_shown import Console, Hands, figures_of, shown


@pytest.fixture
def console() -> Iterator[Console]:
    """A console over a pipeline, with one look."""
    with shown(figures_of(Hands())) as served:
        served.watch.look()
        yield served


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    named = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *named, "-keyout", str(key), "-out", str(chain)], check=True, capture_output=True)
    return chain, key
