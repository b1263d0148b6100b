"""A registry of templates of known behaviour."""

from __future__ import annotations

import pytest
from fake_templates import FakeLoopNest, FakeRow

from mlirstitch.passes.stitching import template


@pytest.fixture
def fake_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the registry by two templates of known behaviour."""
    monkeypatch.setattr(template, "_REGISTRY", {t.name: t for t in (FakeRow(), FakeLoopNest())})
