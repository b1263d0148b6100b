"""A compilation in a child process: an abort in native code becomes an error, and the folder is the reproducer.

The parent writes ``options.json`` into a folder and starts ``python -m mlirstitch.driver.worker FOLDER``. The child
writes ``input.mlir`` as soon as it has linalg, reports phases as lines on stdout, and ends with ``result.json``
or ``error.json``. Weights never cross the process boundary: the child writes the bundle itself.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlirstitch import errors
from mlirstitch.driver.artifacts import keep_reproducer, write_json
from mlirstitch.errors import MlirstitchError, PassError

CRASH_EXIT = 3
_PHASE = "mlirstitch-phase: "


class CompilerCrash(MlirstitchError):
    """The compiling child process died. The message says how; ``reproducer`` is the folder that repeats it."""


@dataclass(frozen=True)
class CompileRequest:
    """What one child process is to do.

    Attributes:
        spec: a ``.mlir`` path, ``file.py:factory`` or ``package.module:factory``.
        text: IR text, used instead of reading ``spec`` when not None (standard input).
        options: fields of ``CompileOptions``.
        bundle: path of the bundle to write, or "".
        emit: levels whose text is wanted back, for example ("ptx",).
    """

    spec: str
    text: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    bundle: str = ""
    emit: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompileResult:
    """What a child process answers: emitted texts by level, the report, seconds by phase."""

    emitted: dict[str, str]
    report: dict[str, Any]
    timings: dict[str, float]


def run_in_child(request: CompileRequest, on_phase: Callable[[str], None] | None = None) -> CompileResult:
    """Compile in a fresh process. Raises the error the child met, or CompilerCrash if it died."""
    with tempfile.TemporaryDirectory(prefix="mlirstitch-") as name:
        folder = Path(name)
        write_json(folder / "options.json", asdict(request))
        with open(folder / "stderr.txt", "wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-m", "mlirstitch.driver.worker", name],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    if not line.startswith(_PHASE):
                        sys.stderr.write(line)  # what the user's model prints is not a product of ours
                    elif on_phase is not None:
                        on_phase(line.removeprefix(_PHASE).strip())
                code = child.wait()
            except BaseException:
                child.kill()
                child.wait()
                raise
        if (folder / "result.json").exists() and code == 0:
            result = json.loads((folder / "result.json").read_text())
            emitted = {level: (folder / f"emitted.{level}").read_text() for level in request.emit}
            return CompileResult(emitted, result["report"], result["timings"])
        if (folder / "error.json").exists():
            raise _error_from(json.loads((folder / "error.json").read_text()))
        tail = (folder / "stderr.txt").read_text(errors="replace")[-2000:].strip()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        kept = keep_reproducer(folder, request.options.get("reproducer", ""), f"died by {how}\n{tail}")
        raise CompilerCrash(
            f"the compiler process died by {how}" + (f"; its last words:\n{tail}" if tail else ""),
            hint="this is a fault of the compiler, not of the model: please report it with the reproducer folder",
            reproducer=str(kept),
        )


def _error_from(data: dict[str, Any]) -> MlirstitchError:
    """Rebuild the error a child wrote; an unknown class (an internal fault) becomes CompilerCrash."""
    kind = getattr(errors, data["class"], None)
    fields = {key: data[key] for key in ("hint", "source", "reproducer")}
    if isinstance(kind, type) and issubclass(kind, MlirstitchError):
        return kind(data["message"], **fields)
    return CompilerCrash(data["message"], **fields)


def _error_record(error: Exception, folder: Path, options: dict[str, str]) -> dict[str, Any]:
    if isinstance(error, MlirstitchError):
        message = error.args[0] if isinstance(error, PassError) else error.message
        return {
            "class": type(error).__name__,
            "message": message,
            "hint": error.hint,
            "source": error.source,
            "reproducer": error.reproducer,
        }
    kept = keep_reproducer(folder, options.get("reproducer", ""), f"{type(error).__name__}: {error}")
    return {
        "class": "CompilerCrash",
        "message": f"internal error: {type(error).__name__}: {error}",
        "hint": "this is a fault of the compiler: please report it with the reproducer folder",
        "source": "",
        "reproducer": str(kept),
    }


def main(folder_name: str) -> int:
    """Entry of the child. Returns the exit code: 0, 1 (refused input), 3 (internal fault)."""
    from mlirstitch.driver import compile as driver
    from mlirstitch.options import CompileOptions

    folder = Path(folder_name)
    request = json.loads((folder / "options.json").read_text())
    for stale in ("result.json", "error.json"):
        (folder / stale).unlink(missing_ok=True)

    def on_phase(phase: str) -> None:
        print(_PHASE + phase, flush=True)

    def on_input(text: str) -> None:
        (folder / "input.mlir").write_text(text)

    try:
        options = CompileOptions(**request["options"])
        artifact = driver.compile_spec(request["spec"], request["text"], options, on_phase=on_phase, on_input=on_input)
        for level in request["emit"]:
            (folder / f"emitted.{level}").write_text(artifact.text(level))
        if request["bundle"]:
            on_phase("write bundle")
            artifact.save(request["bundle"])
        write_json(folder / "result.json", {"report": artifact.report, "timings": artifact.timings})
        return 0
    except Exception as error:
        if not isinstance(error, MlirstitchError):
            import traceback

            traceback.print_exc()
        write_json(folder / "error.json", _error_record(error, folder, request["options"]))
        return 1 if isinstance(error, MlirstitchError) else CRASH_EXIT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
