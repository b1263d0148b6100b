"""``python -m mlirstitch.runtime.emulator`` and the command behind it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ptx_text import kernel

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.__main__ import main
from mlirstitch.runtime.emulator.command import Request, run

_SCALED = kernel(
    "mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0; add.u64 %d2, %a1, %d0; ld.global.b32 %r1, [%d1];\n"
    "mul.rn.f32 %r1, %r1, %s2; cvt.rn.f32.s32 %r2, %s3; add.rn.f32 %r1, %r1, %r2; st.global.b32 [%d2], %r1;",
    pointers=2,
    scalars=("f32", "s32"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "k.ptx").write_text(_SCALED)
    np.savez(tmp_path / "in.npz", x=np.arange(32, dtype=np.float32))
    np.save(tmp_path / "y.npy", np.ones(32, np.float32))
    return tmp_path


def _request(folder: Path, *args: str, **fields: object) -> Request:
    return Request(ptx=str(folder / "k.ptx"), block="32", args=args, **fields)  # type: ignore[arg-type]


def test_arrays_and_scalars_of_every_kind_reach_the_kernel(folder: Path) -> None:
    out = folder / "out.npz"
    for y in (f"{folder}/y.npy", "zeros:float32:4x8", "empty:float32:32"):
        lines = run(_request(folder, f"{folder}/in.npz:x", y, "f32:0.5", "int:-3", output=str(out), entry="k"))
        assert lines == []
        with np.load(out) as arrays:
            assert arrays.files == ["x", "arg1"]
            assert arrays["arg1"].reshape(-1).tolist() == [0.5 * n - 3 for n in range(32)]


def test_without_an_output_file_arrays_are_described_and_counters_printed_as_json(folder: Path) -> None:
    lines = run(_request(folder, f"{folder}/in.npz:x", "zeros:float32:32", "f32:2", "i32:0", counters=True))
    assert json.loads(lines[0])["bytes_loaded"] == 128
    assert lines[1:] == ["x: float32[32], min 0, mean 15.5, max 31", "arg1: float32[32], min 0, mean 31, max 62"]


def test_the_sanitizer_knows_memory_nobody_has_written(folder: Path) -> None:
    args = ("empty:float32:32", "zeros:float32:32", "f32:2", "i32:0")
    run(_request(folder, *args))
    with pytest.raises(LaunchError, match="nobody has written"):
        run(_request(folder, *args, sanitize=True))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("zeros:float32:32",), r"takes 4 arguments, not 1(.|\n)*p0 \(pointer, 8 bytes\), p1 \(pointer, 8 bytes\), p2"),
        (("in.npz:z", "zeros:float32:32", "f32:2", "int:0"), r"in\.npz has no array 'z'(.|\n)*it has x"),
        (("none.npy", "zeros:float32:32", "f32:2", "int:0"), r"cannot read .*none\.npy"),
        (("zeros:float33:32", "zeros:float32:32", "f32:2", "int:0"), r"--arg zeros:float33:32: "),
        (("zeros:float32:4,8", "zeros:float32:32", "f32:2", "int:0"), r"needs a type and a shape"),
        (("zeros:float32:32", "zeros:float32:32", "f32:two", "int:0"), r"'two' is no number"),
        (("zeros:float32:32", "zeros:float32:32", "f32:2", "int:0x123456789"), r"does not fit into 32 bits"),
        (("zeros:float32:32", "zeros:float32:32", "f32:2", "five"), r"--arg five: is no argument"),
        (("f32:1", "zeros:float32:32", "f32:2", "int:0"), r"argument 0 .* is a pointer"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(folder: Path, args: tuple[str, ...], message: str) -> None:
    full = [f"{folder}/{arg}" if arg.startswith(("in.", "none.")) else arg for arg in args]
    with pytest.raises(LaunchError, match=message):
        run(_request(folder, *full))


def test_the_entry_may_be_left_out_only_if_there_is_one(folder: Path) -> None:
    (folder / "k.ptx").write_text(_SCALED + _SCALED.split("\n", 3)[3].replace("entry k(", "entry other("))
    args = ("zeros:float32:32", "zeros:float32:32", "f32:2", "int:0")
    with pytest.raises(LaunchError, match=r"which kernel\?(.|\n)*k, other"):
        run(_request(folder, *args))
    with pytest.raises(LaunchError, match=r"no kernel 'third'"):
        run(_request(folder, *args, entry="third"))
    run(_request(folder, *args, entry="other"))


def test_the_shape_of_a_launch_is_checked(folder: Path) -> None:
    with pytest.raises(LaunchError, match="--grid must be one to three numbers"):
        run(_request(folder, *["zeros:float32:32"] * 2, "f32:2", "int:0", grid="1,2,3,4"))


def test_a_fault_ends_the_process_with_1_and_a_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(folder / "k.ptx"), "--block", "32", "--arg", "zeros:float32:31", "--arg", "zeros:float32:32"]
    assert main([*arguments, "--arg", "f32:1", "--arg", "int:0"]) == 1
    assert re.match(
        r"error: kernel 'k', PTX line \d+ \(ld\.global\.b32\): thread \(31, 0, 0\)", capsys.readouterr().err
    )


def test_the_command_needs_numpy_alone(folder: Path) -> None:
    script = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'mlir', 'torch', 'click', 'ml_dtypes', 'safetensors'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from mlirstitch.runtime.emulator.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    arguments = ["k.ptx", "--block", "32", "--arg", "in.npz:x", "--arg", "y.npy", "--arg", "f32:2", "--arg", "int:1"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "arg1: float32[32], min 1, mean 32, max 63"
