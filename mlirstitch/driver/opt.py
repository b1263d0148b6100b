"""``mlirstitch-opt``: run passes on IR, as mlir-opt does, with the passes of mlirstitch beside those of MLIR.

The work happens in a child process, because malformed input can make native code abort. The child keeps the module it
works on, the pipeline and the running step in a folder; if it dies, the folder becomes the reproducer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

EXIT_OK, EXIT_REFUSED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
EXIT_INTERNAL = 3  # of the child only; the command itself ends with EXIT_REFUSED
_WORK_FOLDER = "--work-folder="


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0, 1 (input refused, a pass failed or the compiler broke), 2 (usage)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if any(argument.startswith(_WORK_FOLDER) for argument in arguments):
        from mlirstitch.driver.opt_session import run_session

        return run_session(arguments)
    return _supervise(arguments)


def _supervise(arguments: list[str]) -> int:
    """Run the child and turn its death into an error."""
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="mlirstitch-opt-")
    try:
        command = [sys.executable, "-m", "mlirstitch.driver.opt", _WORK_FOLDER + folder, *arguments]
        code = subprocess.call(command)
        if code < 0 or code == EXIT_INTERNAL:
            _report_death(folder, code)
            return EXIT_REFUSED
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _report_death(folder: str, code: int) -> None:
    import signal
    from pathlib import Path

    from mlirstitch.errors import MlirstitchError
    from mlirstitch.passes.reproducer import write_reproducer_text

    def read(name: str) -> str:
        path = Path(folder, name)
        return path.read_text().strip() if path.exists() else ""

    step, text, parent = read("step.txt"), read("input.mlir"), read("parent.txt")
    where = f"while running {step}" if step else "while reading the input"
    reason = f"died of {signal.Signals(-code).name} {where}" if code < 0 else f"internal error {where}"
    if code < 0:
        print(f"error: the compiler {reason}", file=sys.stderr)
    try:
        kept = write_reproducer_text(text, read("pipeline.txt") or "builtin.module()", parent or ".", reason)
        print(f"note: reproducer: {kept}", file=sys.stderr)
    except MlirstitchError as error:
        print(f"note: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
