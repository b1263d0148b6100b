"""The store: whole entries or none, no wrong hit, a bound, several processes, folders that cannot be used."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlirstitch.driver.cache import Store
from mlirstitch.driver.cache.store import FORMAT, KINDS

KEY, OTHER = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))


def open_store(folder: Path, limit: int = 10**9) -> tuple[Store, list[str]]:
    troubles: list[str] = []
    return Store(folder, limit, troubles.append), troubles


def only_file(folder: Path) -> Path:
    (found,) = [path for path in folder.rglob("*") if path.is_file()]
    return found


def test_what_was_put_comes_back_under_its_kind_and_key_alone(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    store.put("program", KEY, b"content")
    assert store.get("program", KEY) == b"content"
    assert store.get("program", OTHER) is None
    assert store.get("report", KEY) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[: len(FORMAT) + 70],
        lambda raw: b"",
        lambda raw: b"something else",
        lambda raw: raw.replace(b"entry 1", b"entry 0"),
        lambda raw: raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:],
        lambda raw: raw.replace(KEY.encode(), OTHER.encode()),
        lambda raw: raw + b"more",
    ],
    ids=["cut", "no content", "empty", "foreign", "other format", "flipped bit", "other key", "longer"],
)
def test_a_damaged_entry_is_ignored_and_written_anew(damage, tmp_path: Path) -> None:
    store, troubles = open_store(tmp_path)
    store.put("program", KEY, b"content" * 100)
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert store.get("program", KEY) is None
    store.put("program", KEY, b"content" * 100)
    assert store.get("program", KEY) == b"content" * 100
    assert not troubles


def test_an_entry_under_the_name_of_another_is_no_hit(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    store.put("program", KEY, b"content")
    path = only_file(tmp_path)
    renamed = tmp_path / "program" / OTHER[:2] / path.name.replace(KEY, OTHER)
    renamed.parent.mkdir(exist_ok=True)
    path.rename(renamed)
    assert store.get("program", OTHER) is None


def test_the_oldest_entries_go_first_and_a_used_one_is_young_again(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path, limit=3000)
    keys = [hashlib.sha256(bytes([n])).hexdigest() for n in range(4)]
    for age, key in zip((400, 300, 200), keys, strict=False):
        store.put("program", key, os.urandom(700))
        past = time.time() - age * 3600
        os.utime(tmp_path / "program" / key[:2] / f"{key}.entry", (past, past))
    assert store.get("program", keys[0]) is not None  # used just now
    store.put("report", keys[3], os.urandom(700))
    kept = [key for key in keys if store.get("program", key) or store.get("report", key)]
    assert kept == [keys[0], keys[2], keys[3]]
    assert store.info().total_bytes <= 3000


def test_files_that_a_dead_process_left_are_removed_and_those_of_others_are_not(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    store.put("program", KEY, b"content")
    folder = only_file(tmp_path).parent
    stale, fresh, foreign = folder / ".writing-old", folder / ".writing-new", tmp_path / "notes.txt"
    for path in (stale, fresh, foreign):
        path.write_text("x")
    os.utime(stale, (1, 1))
    os.utime(foreign, (1, 1))
    store.put("program", OTHER, b"content")
    assert not stale.exists()
    assert fresh.exists()
    assert foreign.exists()
    store.clear()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [foreign]


def test_info_counts_entries_by_kind(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    assert store.info().total_bytes == 0
    store.put("program", KEY, b"a")
    store.put("program", OTHER, b"b")
    store.put("report", KEY, b"c")
    info = store.info()
    assert info.entries == {**dict.fromkeys(KINDS, 0), "program": 2, "report": 1}
    assert info.total_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.entry"))
    assert store.clear() == 3
    assert store.info().total_bytes == 0


_WRITER = """
import sys
from pathlib import Path
from mlirstitch.driver.cache import Store
folder, key, letter = sys.argv[1:]
store = Store(Path(folder), 10**9, sys.exit)
for _ in range(150):
    store.put("program", key, letter.encode() * 200_000)
    found = store.get("program", key)
    assert found in (b"a" * 200_000, b"b" * 200_000), found and len(found)
"""


def test_two_processes_that_write_one_entry_never_see_half_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path), KEY]
    writers = [subprocess.Popen([*command, letter], stderr=subprocess.PIPE) for letter in "ab"]
    assert [(writer.communicate(timeout=60)[1], writer.returncode) for writer in writers] == [(b"", 0), (b"", 0)]
    assert only_file(tmp_path).suffix == ".entry"


def test_a_folder_that_is_a_file_costs_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    store, troubles = open_store(path)
    for _ in range(2):
        assert store.get("program", KEY) is None
        store.put("program", KEY, b"content")
    assert len(troubles) == 1
    assert str(path) in troubles[0]
    assert "--cache off" in troubles[0]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_full_or_read_only_disk_costs_one_warning_and_leaves_nothing(code, tmp_path: Path, monkeypatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    store, troubles = open_store(tmp_path)
    store.put("program", KEY, b"content")
    store.put("program", KEY, b"content")
    assert len(troubles) == 1
    assert os.strerror(code) in troubles[0]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
