"""What doctor says about the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlirstitch.driver.cache import Store
from mlirstitch.driver.cache.command import describe
from mlirstitch.driver.cache.opening import cache_folder, default_folder
from mlirstitch.driver.doctor import examine
from mlirstitch.options import CompileOptions


def test_a_folder_that_can_be_written_or_made_is_described(tmp_path: Path) -> None:
    Store(tmp_path, 10**9, pytest.fail).put("program", "0" * 64, b"x")
    usable, text = describe(CompileOptions(cache=str(tmp_path)))
    assert usable
    assert text.startswith(f"{tmp_path}, 1 entries, ")
    assert describe(CompileOptions(cache=str(tmp_path / "not" / "yet")))[0]
    assert not (tmp_path / "not").exists()


def test_off_is_no_fault_and_a_folder_that_is_a_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert describe(CompileOptions(cache="off"))[0]
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        usable, text = describe(CompileOptions(cache=str(path)))
        assert not usable
        assert "cannot be written" in text


def test_doctor_names_the_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLIRSTITCH_CACHE", str(tmp_path))
    (found,) = [finding for finding in examine() if finding.name == "compile cache"]
    assert (found.status, found.blocks) == ("ok", False)
    assert str(tmp_path) in found.detail


def test_the_default_folder_is_the_users_and_the_tests_do_not_use_it(monkeypatch, tmp_path: Path) -> None:
    assert cache_folder(CompileOptions.from_environment()) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(CompileOptions()) == default_folder()
    if os.name == "posix" and os.uname().sysname == "Linux":
        assert default_folder() == tmp_path / "mlirstitch"
