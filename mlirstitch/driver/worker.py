"""A compilation in a child process: an abort in native code becomes an error, and the folder is the reproducer.

The parent writes ``options.json`` into a folder and starts ``python -m mlirstitch.driver.worker FOLDER``. The child
writes ``input.mlir`` as soon as it has linalg, reports phases as lines on stdout, and ends with ``result.json``
or ``error.json``. Weights never cross the process boundary: the child writes the bundle itself.

The user's model runs in the child, so neither side relies on it: it may print anything, close its streams, leave
threads or processes behind that outlive it, or exit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from mlirstitch import errors
from mlirstitch.driver.artifacts import keep_reproducer, write_json
from mlirstitch.driver.console import note
from mlirstitch.errors import MlirstitchError, PassError

CRASH_EXIT = 3
INTERRUPTED = 130
_PHASE = "mlirstitch-phase: "
_NOTE = "mlirstitch-note: "
_LAST_LINES_S = 1.0
"""How long to wait for output that is still under way when the child has ended."""
_IMPORTING = "import"


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
        code, phase = _run_child(folder, on_phase or (lambda _: None))
        if (folder / "result.json").exists() and code == 0:
            result = json.loads((folder / "result.json").read_text())
            emitted = {level: (folder / f"emitted.{level}").read_text() for level in request.emit}
            return CompileResult(emitted, result["report"], result["timings"])
        if (folder / "error.json").exists():
            raise _error_from(json.loads((folder / "error.json").read_text()))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        tail = (folder / "stderr.txt").read_text(errors="replace")[-2000:].strip()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        kept = keep_reproducer(folder, request.options.get("reproducer", ""), f"died by {how}\n{tail}")
        hint = "this is a fault of the compiler, not of the model: please report it with the reproducer folder"
        if phase == _IMPORTING and request.text is None and not Path(request.spec).exists():
            hint = (
                f"the model's own code ran: does {request.spec} end the process when Python calls it? If not, " + hint
            )
        raise CompilerCrash(
            f"the compiler process died by {how}" + (f"; its last words:\n{tail}" if tail else ""),
            hint=hint,
            reproducer=str(kept),
        )


def _run_child(folder: Path, on_phase: Callable[[str], None]) -> tuple[int, str]:
    """Run the child to its end; its exit code (negative: a signal) and the last phase it reported."""
    phases = [""]

    def relay(lines: IO[str]) -> None:
        for line in lines:
            if line.startswith(_PHASE):
                phases.append(line.removeprefix(_PHASE).strip())
                on_phase(phases[-1])
            elif line.startswith(_NOTE):
                note(line.removeprefix(_NOTE).rstrip("\n"))
            else:
                sys.stderr.write(line)  # what the user's model prints is not a product of ours

    with open(folder / "stderr.txt", "wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "mlirstitch.driver.worker", str(folder)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
        )
        # Not until the pipe closes: a process that the model started may hold it open for ever.
        reader = threading.Thread(target=relay, args=(child.stdout,), daemon=True)
        reader.start()
        try:
            code = child.wait()
            reader.join(_LAST_LINES_S)
        except BaseException:
            child.kill()
            child.wait()
            raise
    return code, phases[-1]


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
    if isinstance(error, OSError) and error.filename is not None:
        return {
            "class": "MlirstitchError",
            "message": f"{error.filename}: {error.strerror}",
            "hint": "",
            "source": "",
            "reproducer": "",
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

    phases = os.fdopen(os.dup(sys.__stdout__.fileno()), "w") if sys.__stdout__ is not None else None

    def say(line: str) -> None:
        if phases is not None:
            print(line, file=phases, flush=True)

    def on_phase(phase: str) -> None:
        say(_PHASE + phase)

    def on_note(text: str) -> None:
        say(_NOTE + text)

    def on_input(text: str) -> None:
        (folder / "input.mlir").write_text(text)

    try:
        options = CompileOptions(**request["options"])
        artifact = driver.compile_spec(
            request["spec"], request["text"], options, on_phase=on_phase, on_input=on_input, on_note=on_note
        )
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
        return 1 if isinstance(error, MlirstitchError | OSError) else CRASH_EXIT


def _end(code: int) -> NoReturn:
    """End at once: threads that the model left behind would keep the process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        _end(main(sys.argv[1]))
    except KeyboardInterrupt:
        _end(INTERRUPTED)
