"""The scripts' runner, their option, and the place they talk to."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "runner"))


def _load(path: Path) -> object:
    spec = importlib.util.spec_from_file_location("persist_place", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place() -> object:
    """An empty place, as the tests of persist have it."""
    return _load(HERE.parent / "persist" / "conftest.py").Place()  # type: ignore[attr-defined]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare ``--rewrite``."""
    parser.addoption(
        "--rewrite", action="store_true", help="write new answers into the scripts; the diff is the review"
    )
