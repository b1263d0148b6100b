"""No input kills the process: each is a right answer, or an error with the right exit code and no traceback."""

import json
import time

import numpy as np
import pytest

ADD = """
#map = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %empty = tensor.empty() : tensor<8xf32>
  %y = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]}
      ins(%x : tensor<8xf32>) outs(%empty : tensor<8xf32>) {
    ^bb0(%a: f32, %o: f32):
      %s = arith.addf %a, %a : f32
      linalg.yield %s : f32
    } -> tensor<8xf32>
  return %y : tensor<8xf32>
}
"""

REFUSED = {
    "malformed": ("func.func @main( {", "error: "),
    "binary": ("ML\x00ïR", "NUL"),
    "wrong type": (ADD.replace("-> tensor<8xf32> {", "-> tensor<9xf32> {", 1), "error: "),
    "unknown dialect": ('func.func @main() { "mystery.op"() : () -> () return }', "unknown dialect 'mystery'"),
    "torch dialect": ("func.func @main(%x: !torch.int) { return }", "torch"),
    "elided constant": (
        "func.func @main() -> tensor<4xf32> { %c = arith.constant dense_resource<__elided__> : tensor<4xf32> "
        "return %c : tensor<4xf32> }",
        "elided",
    ),
    "empty text": ("", "error: "),
    "empty module": ("module {}", "error: "),
    "no main": (ADD.replace("@main", "@other"), "main"),
    "two publics": (ADD + ADD.replace("@main", "@second").replace("#map", "#map2"), "error: "),
    "dynamic shape": (ADD.replace("tensor<8xf32>", "tensor<?xf32>"), "error: "),
    "complex": ("func.func @main(%x: tensor<8xcomplex<f32>>) -> tensor<8xcomplex<f32>> { return %x : "
                "tensor<8xcomplex<f32>> }", "complex"),
    "declaration": ("func.func private @main(tensor<8xf32>) -> tensor<8xf32>", "error: "),
}  # fmt: skip


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into the test's folder, which is also the working folder, and returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize("name", REFUSED)
def test_bad_mlir_is_refused_with_one_line_that_says_why(call, write, name):
    text, message = REFUSED[name]
    code, out, err = call("compile", write("bad.mlir", text), "--emit", "ptx")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err


def test_a_function_without_results_compiles_to_a_program_without_kernels(call, write, tmp_path):
    path = write("nothing.mlir", "func.func @main(%x: tensor<8xf32>) { return }")
    code, out, err = call("compile", path, "--emit", "ptx", "-o", "nothing.bundle")
    assert (code, out) == (0, "")
    assert "no kernel" in err
    assert call("run", "nothing.bundle")[:2] == (0, "")


def test_a_missing_file_is_refused(call, tmp_path):
    code, out, err = call("compile", tmp_path / "none.mlir", "--emit", "ptx")
    assert (code, out) == (1, "")
    assert "none.mlir" in err


@pytest.mark.parametrize("target", ["sm_1", "gfx942", ""])
def test_an_unknown_target_is_refused_and_the_known_are_listed(call, write, target):
    code, out, err = call("compile", write("add.mlir", ADD), "--emit", "ptx", "--target", target)
    assert (code, out) == (1, "")
    assert "sm_90" in err


FACTORIES = {
    "no such file": ("none.py:make", "none.py"),
    "no such name": ("model.py:nothing", "nothing"),
    "not callable": ("model.py:constant", "constant"),
    "no such module": ("no_such_package.model:make", "no_such_package"),
    "raises": ("model.py:raising", "out of luck"),
    "wrong return value": ("model.py:single", "single"),
    "model raises": ("model.py:broken", "error: "),
    "exits": ("model.py:exiting", "SystemExit: 0"),
    "raises what is no Exception": ("model.py:raising_base", "Own: gone"),
    "error without text": ("model.py:raising_mute", "Mute"),
    "file that exits": ("exits.py:make", "SystemExit: 4"),
}
MODEL = """
import torch
constant = 3
def raising(): raise RuntimeError("out of luck")
def single(): return 5
def broken(): return torch.nn.Linear(4, 4), (torch.randn(2, 5),)
class Own(BaseException): pass
class Mute(Exception):
    def __str__(self): raise RuntimeError("no text")
def exiting():
    import sys
    sys.exit(0)
def raising_base(): raise Own("gone")
def raising_mute(): raise Mute()
def aborting():
    import os
    os.abort()
def leaving():
    import os
    os._exit(0)
def closing():
    import os
    os.close(1)
    os.close(2)
    return torch.nn.ReLU(), (torch.randn(4),)
def binary():
    import os
    os.write(1, b"\\xff\\xfe no end of line")
    return noisy()
def threaded():
    import threading, time
    threading.Thread(target=time.sleep, args=(600,)).start()
    return noisy()
def forked():
    import subprocess, sys
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"])
    return noisy()
def noisy():
    print("hello from the model")
    return torch.nn.ReLU(), (torch.randn(4),)
"""


@pytest.mark.parametrize("name", FACTORIES)
def test_bad_factories_are_refused_with_a_reason(call, write, name):
    write("model.py", MODEL)
    write("exits.py", "import sys; sys.exit(4)")
    spec, message = FACTORIES[name]
    code, out, err = call("compile", spec, "--emit", "ptx")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err


def test_a_dying_compiler_process_is_an_error_with_a_reproducer(call, write, tmp_path):
    write("model.py", MODEL)
    code, out, err = call("compile", "model.py:aborting", "--emit", "ptx", "--reproducer", tmp_path / "kept")
    assert (code, out) == (3, "")
    assert "died by signal SIGABRT" in err
    (folder,) = (tmp_path / "kept").iterdir()
    assert str(folder) in err
    assert (folder / "run.sh").exists()


def test_a_factory_that_ends_the_process_is_told_apart(call, write, tmp_path):
    write("model.py", MODEL)
    code, out, err = call("compile", "model.py:leaving", "--emit", "ptx", "--reproducer", tmp_path / "kept")
    assert (code, out) == (3, "")
    assert "does model.py:leaving end the process" in err


@pytest.mark.parametrize("name", ["closing", "binary", "threaded", "forked"])
def test_what_a_model_does_to_its_process_does_not_matter(call, write, name):
    write("model.py", MODEL)
    started = time.monotonic()
    code, out, _ = call("compile", f"model.py:{name}", "--emit", "ptx")
    assert code == 0
    assert out.lstrip().startswith("//")
    assert time.monotonic() - started < 15  # it does not wait for what the model left running


def test_what_a_model_prints_does_not_mix_with_the_product(call, write):
    write("model.py", MODEL)
    code, out, err = call("compile", "model.py:noisy", "--emit", "ptx")
    assert code == 0
    assert out.lstrip().startswith("//")
    assert "hello" not in out
    assert "hello from the model" in err


def test_a_bundle_name_that_the_system_refuses_is_an_error_of_the_input(call, write):
    code, out, err = call("compile", write("add.mlir", ADD), "-o", "x" * 300)
    assert (code, out) == (1, "")
    assert "File name too long" in err


def test_an_unwritable_bundle_path_is_refused(call, write, tmp_path):
    write("taken", "something else")
    code, out, err = call("compile", write("add.mlir", ADD), "-o", tmp_path / "taken" / "bundle")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")


def chain(length):
    """``length`` additions, each of the result before."""
    lines = ["#map = affine_map<(d0) -> (d0)>", "func.func @main(%v0: tensor<8xf32>) -> tensor<8xf32> {"]
    lines += ["%empty = tensor.empty() : tensor<8xf32>"]
    for k in range(length):
        lines += [_addition(f"%v{k}", f"%v{k + 1}")]
    return "\n".join([*lines, f"return %v{length} : tensor<8xf32>", "}"])


def independent(count):
    """``count`` additions of the input to itself, all returned."""
    results = ", ".join(["tensor<8xf32>"] * count)
    lines = ["#map = affine_map<(d0) -> (d0)>", f"func.func @main(%x: tensor<8xf32>) -> ({results}) {{"]
    lines += ["%empty = tensor.empty() : tensor<8xf32>"]
    lines += [_addition("%x", f"%v{k}", extra=k) for k in range(count)]
    return "\n".join([*lines, f"return {', '.join(f'%v{k}' for k in range(count))} : {results}", "}"])


def _addition(source, result, extra=1):
    return f"""{result} = linalg.generic {{indexing_maps = [#map, #map], iterator_types = ["parallel"]}}
      ins({source} : tensor<8xf32>) outs(%empty : tensor<8xf32>) {{
    ^bb0(%a: f32, %o: f32):
      %c = arith.constant {extra}.0 : f32
      %s = arith.addf %a, %c : f32
      linalg.yield %s : f32
    }} -> tensor<8xf32>"""


def run(call, bundle, tmp_path, **inputs):
    np.savez(tmp_path / "in.npz", **inputs)
    code, _, err = call("run", bundle, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert code == 0, err
    with np.load(tmp_path / "out.npz") as file:
        return [file[name] for name in file.files]


def compile_and_run(call, write, tmp_path, text):
    code, _, err = call("compile", write("many.mlir", text), "-o", tmp_path / "many.bundle")
    assert code == 0, err
    names = json.loads((tmp_path / "many.bundle" / "manifest.json").read_text())["programs"][0]["signature"]["inputs"]
    return run(call, tmp_path / "many.bundle", tmp_path, **{names[0]["name"]: np.zeros(8, np.float32)})


def test_a_chain_of_300_ops_gives_the_right_answer(call, write, tmp_path):
    (result,) = compile_and_run(call, write, tmp_path, chain(300))
    assert result.tolist() == [300] * 8


def test_200_independent_ops_give_the_right_answers(call, write, tmp_path):
    results = compile_and_run(call, write, tmp_path, independent(200))
    assert sorted(result[0] for result in results) == list(range(200))


@pytest.mark.slow
def test_a_chain_of_3000_ops_gives_the_right_answer(call, write, tmp_path):
    (result,) = compile_and_run(call, write, tmp_path, chain(3000))
    assert result.tolist() == [3000] * 8


@pytest.mark.slow
def test_2000_independent_ops_give_the_right_answers(call, write, tmp_path):
    results = compile_and_run(call, write, tmp_path, independent(2000))
    assert sorted(result[0] for result in results) == list(range(2000))
