"""``python -m mlirstitch.runtime.emulator kernel.ptx ...``: one kernel on the emulated device, with numpy alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mlirstitch.errors import MlirstitchError
from mlirstitch.runtime.emulator.command import Request, run
from mlirstitch.runtime.emulator.engines import ENGINES


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mlirstitch.runtime.emulator",
        description="Run one kernel of a PTX file on the emulated device, whatever compiler made it.",
    )
    parser.add_argument("ptx", help="PTX file")
    parser.add_argument("--entry", metavar="NAME", help="kernel to run; may be left out if there is one")
    parser.add_argument("--grid", default="1", metavar="X[,Y[,Z]]", help="thread blocks (default 1)")
    parser.add_argument("--block", required=True, metavar="X[,Y[,Z]]", help="threads of a block")
    parser.add_argument("--cluster", metavar="X[,Y[,Z]]", help="thread blocks of a cluster")
    parser.add_argument(
        "--arg", dest="args", action="append", default=[], metavar="ARG",
        help="one for every parameter: FILE.npz:NAME, FILE.npy, zeros:DTYPE:4x8, empty:DTYPE:4x8, int:5, f32:1.5",
    )  # fmt: skip
    parser.add_argument("--shared", dest="shared_bytes", type=int, default=0, metavar="BYTES",
                        help="dynamic shared memory")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE.npz", help="write all arrays as they are afterwards")
    parser.add_argument("--counters", action="store_true", help="print what the launch did as JSON")
    parser.add_argument("--sanitize", action="store_true", help="look for uninitialised memory and races too; slow")
    parser.add_argument("--seed", type=int, metavar="N", help="run blocks and warps in an order drawn from it")
    parser.add_argument("--cooperative", action="store_true", help="all blocks are resident and take turns")
    parser.add_argument("--budget", type=int, metavar="N", help="instructions before a loop counts as endless")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="which engine runs it (default auto)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0, or 1 with a message on stderr if the kernel or an argument is at fault."""
    request = Request(**vars(_parser().parse_args(arguments)))
    try:
        lines = run(request)
    except MlirstitchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for line in lines:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
