"""Files of a bundle: a folder or one .zip, read without ever leaving it and replaced all at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlirstitch.errors import BundleError

MANIFEST = "manifest.json"
_SAFE = re.compile(r"[A-Za-z0-9_+=@-][A-Za-z0-9_.+=@-]*")
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)

ReadFile = Callable[[str], bytes]


def check_name(name: str) -> str:
    """Return the relative file name if it stays inside the bundle, else raise :class:`BundleError`."""
    parts = name.split("/")
    if not all(_SAFE.fullmatch(part) for part in parts):
        raise BundleError(f"file name {name!r} is not a plain relative path inside the bundle")
    return name


def is_zip(path: Path) -> bool:
    """Whether a path names the one-file form."""
    return path.suffix.lower() == ".zip"


@contextmanager
def open_files(path: Path) -> Iterator[ReadFile]:
    """A function that reads one file of the bundle at ``path``; everything wrong is a :class:`BundleError`."""
    if path.is_dir():
        yield lambda name: _read_from_folder(path, name)
    elif not path.exists():
        raise BundleError(
            f"there is no bundle at {path}", hint="a bundle is written by: mlirstitch compile ... -o BUNDLE"
        )
    else:
        try:
            archive = zipfile.ZipFile(path)
        except Exception as error:
            raise BundleError(f"{path} is neither a folder nor a readable .zip: {error}") from error
        with archive:
            names = archive.namelist()
            if len(set(names)) != len(names):
                raise BundleError(f"{path}: the archive holds a file twice")
            yield lambda name: _read_from_zip(archive, name)


def _read_from_folder(folder: Path, name: str) -> bytes:
    path = folder / check_name(name)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{name}: is a link to a file outside the bundle")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{name}: {error.strerror or error}") from error


def _read_from_zip(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(check_name(name))
    except KeyError as error:
        raise BundleError(f"{name}: missing from the archive") from error
    except BundleError:
        raise
    except Exception as error:  # zipfile and its decompressors raise many types on damaged data
        raise BundleError(f"{name}: damaged in the archive: {error or type(error).__name__}") from error


@contextmanager
def replacing(path: Path, listed: Callable[[Path], Iterable[str]]) -> Iterator[Path]:
    """A new folder to fill; at the end it takes the place of ``path`` (as a folder or zipped), or vanishes on error.

    ``path`` may be missing, an empty folder, or a bundle; anything else is refused. ``listed(path)`` names the files
    that belong to the bundle being replaced: only those are deleted, whatever else the user keeps there stays.
    """
    path = path.resolve()
    _check_replaceable(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        fresh = staging / "bundle"
        fresh.mkdir()
        yield fresh
        if is_zip(path):
            archive = staging / "bundle.zip"
            _pack(fresh, archive)
            os.replace(archive, path)
        else:
            _swap_folder(fresh, path, staging / "previous", listed)
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if not (staging / "previous").exists():
            shutil.rmtree(staging, ignore_errors=True)


def _check_replaceable(path: Path) -> None:
    hint = "choose another path, or remove what is there"
    if not path.exists():
        return
    if path.is_dir() == is_zip(path):
        found, wanted = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise BundleError(f"{path} is a {found}, but a {wanted} would have to be written there", hint=hint)
    empty = not any(path.iterdir()) if path.is_dir() else path.stat().st_size == 0
    if empty:
        return
    try:
        with open_files(path) as read:
            manifest = json.loads(read(MANIFEST))
    except (BundleError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} exists and is not a bundle; it is left alone", hint=hint) from error
    if not isinstance(manifest, dict) or manifest.get("format") != "mlirstitch-bundle":
        raise BundleError(f"{path} exists and is not a bundle; it is left alone", hint=hint)


def _pack(folder: Path, archive: Path) -> None:
    """Zip a folder so that equal contents give equal bytes: sorted, stored, without times."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as out:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            info = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _ZIP_TIME)
            info.external_attr = 0o644 << 16
            with out.open(info, "w", force_zip64=True) as target, file.open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)


def _swap_folder(fresh: Path, path: Path, previous: Path, listed: Callable[[Path], Iterable[str]]) -> None:
    if not path.exists():
        os.replace(fresh, path)
        return
    owned = {MANIFEST, *listed(path)} if any(path.iterdir()) else set()
    foreign = [f for f in sorted(path.rglob("*")) if not f.is_dir() or f.is_symlink()]
    foreign = [f.relative_to(path) for f in foreign if f.relative_to(path).as_posix() not in owned]
    for file in foreign:
        if (fresh / file).exists() or any((fresh / parent).is_file() for parent in file.parents):
            raise BundleError(f"{path / file} is not part of the bundle there and would be overwritten", hint="move it")
    os.replace(path, previous)
    try:
        os.replace(fresh, path)
    except OSError:
        os.replace(previous, path)
        raise
    for file in foreign:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(previous / file, path / file)
    # Every file left is one that the old manifest lists.
    shutil.rmtree(previous)
