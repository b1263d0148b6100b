"""What `mlirstitch explain` says about source lines, copies and shared kernels, and quantities as people read them."""

import pytest

from mlirstitch.driver.report.explain import kernels
from mlirstitch.driver.report.explain_text import explain_text
from mlirstitch.driver.report.quantities import byte_size, count, seconds
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.program import Argument, Buffer, Copy, Launch, LibraryCall, Operand, Program, Signature, Value

SIGNATURE = Signature((Value("x", (8,), "float32", 0),), (Value("y", (8,), "float32", 1),))
BUFFERS = (Buffer(0, "input", "x", (8,), "float32", 32), Buffer(1, "output", "y", (8,), "float32", 32))


def launch(kernel, *source):
    arguments = (Argument(0, "read", 32, 64), Argument(1, "write", 32, 32))
    return Launch(
        "kernels", kernel, (2, 1, 1), (32, 1, 1), arguments, template="row", stitch_cluster=kernel, source=source
    )


def program(*steps):
    return Program("main", (0,), SIGNATURE, 0, 0, BUFFERS, steps)


def text(tmp_path, *steps):
    parameters = ", ".join(f".param .u64 .ptr .align 1 a_param_{i}" for i in range(2))
    ptx = f".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry a({parameters})\n{{\n\tret;\n}}\n"
    Bundle({"chip": "sm_80", "ptx": "7.0"}, (program(*steps),), {"kernels": ptx}).write(tmp_path / "b")
    return explain_text(tmp_path / "b")


def test_launches_of_one_kernel_are_one_entry_and_copies_come_last():
    call = LibraryCall("matmul", (Operand(0, "read", (8,), "float32"),), stitch_cluster="c")
    found = kernels(program(Copy(0, 1, 32), launch("a", "m.py:1"), call, launch("a", "m.py:2", "m.py:1")))
    assert [(kernel.name, kernel.form, kernel.launches) for kernel in found] == [
        ("a", "row", 2),
        ("matmul (c)", "library", 1),
        ("copy", "copy", 1),
    ]
    assert (found[0].bytes, found[0].moved) == (128, 192)
    assert found[0].source == ("m.py:1", "m.py:2")


def test_source_lines_are_shown_by_file_name_and_the_paths_are_told_once(tmp_path):
    shown = text(tmp_path, launch("a", "/home/me/model.py:7", "/home/me/layers.mlir:3:14"))
    assert "from   model.py:7, layers.mlir:3:14" in shown
    assert shown.endswith("source files\n  model.py  /home/me/model.py\n  layers.mlir  /home/me/layers.mlir")


def test_files_of_one_name_keep_their_paths(tmp_path):
    shown = text(tmp_path, launch("a", "a/model.py:7", "b/model.py:8"))
    assert "from   a/model.py:7, b/model.py:8" in shown


def test_names_that_say_everything_are_not_listed_again(tmp_path):
    shown = text(tmp_path, launch("a", "model.mlir:5:8"))
    assert "from   model.mlir:5:8" in shown
    assert "source files" not in shown


def test_long_lists_of_lines_are_cut(tmp_path):
    assert "m.py:7 and 2 more" in text(tmp_path, launch("a", *(f"m.py:{n}" for n in range(10))))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (byte_size(999), "999 B"),
        (byte_size(1000), "1 kB"),
        (byte_size(999_700), "1 MB"),
        (byte_size(11_000_000), "11 MB"),
        (byte_size(5 * 10**15), "5e+03 TB"),
        (seconds(2e-5), "20 us"),
        (seconds(0.0123), "12.3 ms"),
        (seconds(4.56), "4.56 s"),
        (count(1, "copy", "copies"), "1 copy"),
        (count(2, "copy", "copies"), "2 copies"),
        (count(0, "kernel"), "0 kernels"),
    ],
)
def test_quantities(shown, expected):
    assert shown == expected
