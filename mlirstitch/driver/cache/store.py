"""A folder of entries by key: bounded, shared by processes, and never believed without a check.

An entry is one file: a line that names the format, the key, the content compressed, and before it its SHA-256.
It is written aside and renamed, so that a reader sees all of it or none. What does not check (cut short, foreign,
moved to another name) counts as absent and is written anew. A folder that cannot be used costs one warning, and the
compiler works as without it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FORMAT = b"mlirstitch cache entry 1\n"
"""First line of every entry. A change of the layout takes another number."""

KINDS: tuple[str, ...] = ("program", "report", "device-code", "tuning")
"""What is kept, each in a folder of its own."""

_SUFFIX = ".entry"
_ASIDE = ".writing-"
_STALE_S = 3600.0
"""Age from which on a file that somebody is writing counts as left behind."""

_FILLED = 0.9
"""Share of the bound that is left when entries are removed, so that not every later write removes some."""

_MARK_EVERY_S = 3600.0
"""An entry's time of use is brought up to date no more often than this."""


@dataclass(frozen=True)
class CacheInfo:
    """What lies in a cache: entries and bytes by kind, in the order of :data:`KINDS`."""

    folder: str
    limit_bytes: int
    entries: dict[str, int]
    bytes: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(self.bytes.values())


class Store:
    """The entries below ``folder``, at most ``limit_bytes`` of them; those unused for longest go first.

    No method raises OSError: ``on_trouble`` is called with a sentence the first time that the folder cannot be used.
    """

    def __init__(self, folder: Path, limit_bytes: int, on_trouble: Callable[[str], None]) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._on_trouble = on_trouble
        self._troubled = False

    def get(self, kind: str, key: str) -> bytes | None:
        """The content of an entry, or None if there is none that checks."""
        path = self._path(kind, key)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._trouble("read", error)
            return None
        content = _decode(raw, key)
        if content is not None:
            self._mark_used(path)
        return content

    def put(self, kind: str, key: str, content: bytes) -> None:
        """Write an entry, replacing the one there is; then remove old ones over the bound."""
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, _encode(content, key))
            self._keep_within_bound()
        except OSError as error:
            self._trouble("write", error)

    def info(self) -> CacheInfo:
        """Count what is there."""
        entries: dict[str, int] = dict.fromkeys(KINDS, 0)
        sizes: dict[str, int] = dict.fromkeys(KINDS, 0)
        for kind in KINDS:
            for path, stat in _files(self.folder / kind):
                if path.suffix == _SUFFIX:
                    entries[kind] += 1
                    sizes[kind] += stat.st_size
        return CacheInfo(str(self.folder), self.limit_bytes, entries, sizes)

    def clear(self) -> int:
        """Remove all entries, and nothing that is not ours; the number removed."""
        removed = 0
        for kind in KINDS:
            for path, _ in _files(self.folder / kind):
                with suppress(OSError):
                    path.unlink()
                    removed += path.suffix == _SUFFIX
        return removed

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key[:2] / (key + _SUFFIX)

    def _mark_used(self, path: Path) -> None:
        with suppress(OSError):  # of a folder that may only be read: the entry is as good
            if time.time() - path.stat().st_mtime > _MARK_EVERY_S:
                os.utime(path)

    def _keep_within_bound(self) -> None:
        now = time.time()
        found: list[tuple[float, str, int]] = []
        for kind in KINDS:
            for path, stat in _files(self.folder / kind):
                if path.suffix == _SUFFIX:
                    found.append((stat.st_mtime, str(path), stat.st_size))
                elif now - stat.st_mtime > _STALE_S:
                    path.unlink(missing_ok=True)
        total = sum(size for _, _, size in found)
        if total <= self.limit_bytes:
            return
        for _, name, size in sorted(found):
            if total <= self.limit_bytes * _FILLED:
                break
            Path(name).unlink(missing_ok=True)
            total -= size

    def _trouble(self, verb: str, error: OSError) -> None:
        if not self._troubled:
            self._troubled = True
            reason = error.strerror or str(error)
            self._on_trouble(
                f"warning: cannot {verb} the compile cache {self.folder}: {reason}; going on without it "
                "(--cache DIR names another folder, --cache off none)"
            )


def _encode(content: bytes, key: str) -> bytes:
    packed = zlib.compress(content, 1)
    return FORMAT + f"{key}\n{hashlib.sha256(packed).hexdigest()}\n".encode() + packed


def _decode(raw: bytes, key: str) -> bytes | None:
    """The content of an entry's file, or None if it is not a whole entry of this key."""
    if not raw.startswith(FORMAT):
        return None
    parts = raw[len(FORMAT) :].split(b"\n", 2)
    if len(parts) != 3 or parts[0] != key.encode():
        return None
    if hashlib.sha256(parts[2]).hexdigest().encode() != parts[1]:
        return None
    return zlib.decompress(parts[2])


def _replace(path: Path, raw: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=_ASIDE, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Entries and files being written below the folder of a kind, in no particular order; what vanishes is skipped."""
    for directory in _scan(folder):
        for item in _scan(Path(directory.path)):
            if item.name.endswith(_SUFFIX) or item.name.startswith(_ASIDE):
                with suppress(OSError):
                    yield Path(item.path), item.stat(follow_symlinks=False)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
