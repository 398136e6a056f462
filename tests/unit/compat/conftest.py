"""Compatibility, on for one test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gristmill import compat


@pytest.fixture
def curator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`import nemo_curator` finds Gristmill."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    compat.install(force=True)
    yield
    compat.uninstall()
    assert "GRISTMILL_COMPAT" not in os.environ
