"""The product of a compilation: programs, PTX, weights, report; in memory, in a folder, or in one .zip.

On disk (docs/manifest.md): ``manifest.json``, ``kernels/<module>.ptx``, ``weights.safetensors``, ``report.json`` and
any further text files. The manifest holds the SHA-256 of every file and of itself. In memory a bundle refers to the
caller's own arrays: a weight changed in place is seen by the next run; only :meth:`Bundle.write` copies.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlirstitch.errors import BundleError
from mlirstitch.runtime.bundle_files import MANIFEST, ReadFile, check_name, open_files, replacing
from mlirstitch.runtime.dtypes import Array, describe, describe_array
from mlirstitch.runtime.manifest import FORMAT, VERSION, check_schema, decode_program, encode_program
from mlirstitch.runtime.program import Program
from mlirstitch.runtime.program_checks import check_program
from mlirstitch.runtime.ptx_entries import entry_points
from mlirstitch.runtime.weights import decode_weights, write_weights

REPORT = "report.json"
WEIGHTS = "weights.safetensors"
_RESERVED = {MANIFEST, REPORT, WEIGHTS}
_NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Bundle:
    """A compiled model.

    Attributes:
        target: ``{"chip": "sm_90", "ptx": "7.8"}``.
        programs: one per device.
        modules: module name -> PTX text.
        weights: name -> array, for every buffer of role weight or constant. Shape and dtype as the buffer declares.
        options: the options that shaped the code, for the record.
        producer: ``{"name": ..., "version": ...}`` of the compiler.
        calling: how the model's own arguments and results map to the signature; opaque to the runtime.
        report: facts about the compilation, JSON.
        files: further text files by relative name, for example ``stitched.mlir``.
        shared_weights: the arrays belong to the caller, who may change them between runs.
        path: where the bundle was read from, or "".
    """

    target: Mapping[str, str]
    programs: tuple[Program, ...]
    modules: Mapping[str, str]
    weights: Mapping[str, Array] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=lambda: {"name": "mlirstitch", "version": "unknown"})
    calling: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    shared_weights: bool = True
    path: str = ""

    def check(self) -> None:
        """Raise :class:`BundleError` unless every program fits the modules and the weights."""
        if not self.programs:
            raise BundleError("the bundle holds no program")
        if len({program.name for program in self.programs}) != len(self.programs):
            raise BundleError("two programs of the bundle have the same name")
        entries = {name: entry_points(text) for name, text in self.modules.items()}
        for program in self.programs:
            check_program(program, entries)
            self._check_weights(program)

    def _check_weights(self, program: Program) -> None:
        for buffer in program.buffers:
            if buffer.role not in ("weight", "constant"):
                continue
            where = f"program {program.name!r}, {buffer.role} {buffer.name!r}"
            array = self.weights.get(buffer.name)
            if array is None:
                raise BundleError(f"{where}: the bundle has no such weight")
            if array.dtype.name != buffer.dtype or not array.dtype.isnative or array.shape != buffer.shape:
                wanted = describe(buffer.dtype, buffer.shape)
                raise BundleError(f"{where}: expected {wanted}, the bundle has {describe_array(array)}")

    def program(self, name: str = "main") -> Program:
        """The program of that name. Raises :class:`BundleError` if there is none."""
        for program in self.programs:
            if program.name == name:
                return program
        known = ", ".join(program.name for program in self.programs)
        raise BundleError(f"the bundle has no program {name!r}", hint=f"programs: {known}")

    def write(self, path: str | Path) -> None:
        """Write a folder, or one file if ``path`` ends in ``.zip``; equal bundles give equal bytes.

        The new bundle appears all at once. An existing bundle at ``path`` is replaced, files in it that are not its own
        are kept; anything else at ``path`` is refused. Raises :class:`BundleError`.
        """
        self.check()
        with replacing(Path(path), _listed_files) as folder:
            self._write_into(folder)

    def _write_into(self, folder: Path) -> None:
        texts = {REPORT: _json_text(self.report, REPORT)}
        for name, text in self.modules.items():
            texts[_module_file(name)] = text
        for name, text in self.files.items():
            if name in texts or name in _RESERVED:
                raise BundleError(f"file name {name!r} is taken by the bundle itself")
            texts[check_name(name)] = text
        for name, text in sorted(texts.items()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.encode("utf-8"))
        weights = None
        if self.weights:
            aliases = write_weights(folder / WEIGHTS, self.weights)
            weights = {"file": WEIGHTS, "sha256": _sha256(folder / WEIGHTS), "aliases": aliases}
        module_files = {_module_file(name) for name in self.modules}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "digest": _NO_DIGEST,
            "producer": dict(self.producer),
            "target": dict(self.target),
            "options": dict(self.options),
            "calling": dict(self.calling),
            "modules": [
                {"name": name, "file": _module_file(name), "sha256": _sha256(folder / _module_file(name))}
                for name in sorted(self.modules)
            ],
            "weights": weights,
            "files": {name: _sha256(folder / name) for name in sorted(texts) if name not in module_files},
            "programs": [encode_program(program) for program in self.programs],
        }
        data = _json_text(manifest, MANIFEST).encode("utf-8")
        check_schema(json.loads(data))
        digest = hashlib.sha256(data).hexdigest()
        (folder / MANIFEST).write_bytes(_with_digest(data, _NO_DIGEST, digest))


def read_bundle(path: str | Path) -> Bundle:
    """Read and check a bundle. Whatever is wrong with it is a :class:`BundleError` naming file and reason."""
    path = Path(path)
    with open_files(path) as read:
        try:
            return _read(read, str(path))
        except BundleError as error:
            raise BundleError(f"bundle {path}: {error.message}", hint=error.hint) from error


def _read(read: ReadFile, path: str) -> Bundle:
    manifest = _read_manifest(read)
    programs = manifest.get("programs")
    if type(programs) is not list:
        raise BundleError(f"{MANIFEST}: 'programs' is not a list")
    decoded = tuple(decode_program(data, f"{MANIFEST}: programs[{i}]") for i, data in enumerate(programs))
    check_schema(manifest)
    modules, files = _read_texts(manifest, read)
    if REPORT not in files:
        raise BundleError(f"{MANIFEST}: does not list {REPORT}")
    bundle = Bundle(
        target=_object(manifest, "target"),
        programs=decoded,
        modules=modules,
        weights=_read_weights(manifest, read),
        options=_object(manifest, "options"),
        producer=_object(manifest, "producer"),
        calling=_object(manifest, "calling"),
        report=_object({REPORT: _parse_json(files.pop(REPORT), REPORT)}, REPORT),
        files=files,
        shared_weights=False,
        path=path,
    )
    bundle.check()
    return bundle


def _read_manifest(read: ReadFile) -> dict[str, Any]:
    data = read(MANIFEST)
    manifest = _parse_json(data, MANIFEST)
    if type(manifest) is not dict or manifest.get("format") != FORMAT:
        raise BundleError(f"{MANIFEST}: this is not the manifest of a bundle (format {FORMAT!r})")
    if type(manifest.get("version")) is not int or manifest["version"] != VERSION:
        raise BundleError(
            f"{MANIFEST}: version {manifest.get('version')!r} is unknown, this runtime reads version {VERSION}",
            hint="compile the model again, or install the mlirstitch that wrote it",
        )
    digest = manifest.get("digest")
    if type(digest) is not str or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise BundleError(f"{MANIFEST}: 'digest' is not a SHA-256")
    if hashlib.sha256(_with_digest(data, digest, _NO_DIGEST)).hexdigest() != digest:
        raise BundleError(f"{MANIFEST}: checksum mismatch, the file was changed after it was written")
    return manifest


def _with_digest(data: bytes, old: str, new: str) -> bytes:
    """The manifest's digest is that of its own text with zeros in place of the digest."""
    return data.replace(f'"digest": "{old}"'.encode(), f'"digest": "{new}"'.encode(), 1)


def _read_texts(manifest: Mapping[str, Any], read: ReadFile) -> tuple[dict[str, str], dict[str, str]]:
    """PTX by module name, and the other text files by name."""
    listed = manifest.get("modules")
    if type(listed) is not list:
        raise BundleError(f"{MANIFEST}: 'modules' is not a list")
    modules: dict[str, str] = {}
    for i, entry in enumerate(listed):
        name = entry.get("name") if type(entry) is dict else None
        if type(name) is not str or name in modules:
            raise BundleError(f"{MANIFEST}: modules[{i}] has no name, or one that is taken")
        modules[name] = _text(_read_checked(read, entry.get("file"), entry.get("sha256")), entry["file"])
    files = {name: _text(_read_checked(read, name, sha), name) for name, sha in _object(manifest, "files").items()}
    return modules, files


def _read_weights(manifest: Mapping[str, Any], read: ReadFile) -> dict[str, Array]:
    if manifest.get("weights") is None:
        return {}
    entry = _object(manifest, "weights")
    file = entry.get("file")
    aliases = _object(entry, "aliases")
    if not all(type(target) is str for target in aliases.values()):
        raise BundleError(f"{MANIFEST}: weights.aliases maps names to names")
    # No name for the file's bytes here: the decoder drops them before it makes its copies.
    return decode_weights(_read_checked(read, file, entry.get("sha256")), aliases, str(file))


def _read_checked(read: ReadFile, name: Any, sha256: Any) -> bytes:
    if type(name) is not str:
        raise BundleError(f"{MANIFEST}: {name!r} is not a file name")
    data = read(name)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise BundleError(f"{name}: checksum mismatch, the file was changed after it was written")
    return data


def _object(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key, {})
    if type(value) is not dict:
        raise BundleError(f"{MANIFEST}: {key!r} is not an object")
    return value


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{name}: is not UTF-8 text: {error}") from error


def _parse_json(data: bytes | str, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{name}: is not JSON: {error}") from error


def _json_text(data: Any, name: str) -> str:
    try:
        return json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise BundleError(f"{name}: cannot be written as JSON: {error}") from error


def _module_file(name: str) -> str:
    file = f"kernels/{name}.ptx"
    if "/" in name:
        raise BundleError(f"module name {name!r} is not a plain file name")
    return check_name(file)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed_files(path: Path) -> list[str]:
    """Files that the manifest at ``path`` calls its own, as far as it can be understood."""
    manifest = _parse_json((path / MANIFEST).read_bytes(), MANIFEST)
    names: list[Any] = list(_object(manifest, "files"))
    for entry in [manifest.get("weights"), *(manifest.get("modules") or [])]:
        if type(entry) is dict:
            names.append(entry.get("file"))
    return [name for name in names if type(name) is str]
