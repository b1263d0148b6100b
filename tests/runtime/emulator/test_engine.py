"""The seams of the emulator: front end without numpy, an engine that implements everything the front end accepts."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
from ptx_text import kernel

from mlirstitch.runtime import emulator
from mlirstitch.runtime.emulator.ptx import opcodes
from mlirstitch.runtime.emulator.reference.engine import HANDLERS

_PACKAGE = Path(emulator.__file__).parent


def test_every_opcode_the_front_end_accepts_is_implemented() -> None:
    ends_block = {"bra", "brx", "ret", "exit", "trap", "barrier", "cluster_wait"}
    assert set(HANDLERS) == set(opcodes.FORMS) - ends_block


def test_front_end_knows_neither_numpy_nor_an_engine() -> None:
    files = sorted((_PACKAGE / "ptx").glob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name != "numpy", file
                assert "reference" not in name, file


def test_a_kernel_is_compiled_once_and_to_the_same_code_each_time() -> None:
    text = kernel(
        "setp.lt.u32 %p1, %r0, 5; @%p1 bra $a;\nadd.u32 %r1, %r0, 1;\n$a: st.global.b32 [%a0], %r0;", pointers=1
    )
    module = emulator.load(text)
    assert module.engine("k") is module.engine("k")
    assert module.engine("k").program.source == emulator.load(text).engine("k").program.source
    module.launch("k", 1, 32, [np.zeros(1, np.uint32)])
