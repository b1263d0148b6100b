"""What the command line and compile() take: MLIR text, files, models; what is none of these is told what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlirstitch.driver.sources import read_spec
from mlirstitch.errors import MlirstitchError

TEXT = "func.func @main() {\n  return\n}\n"


def test_a_file_and_standard_input_are_read_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.mlir").write_text(TEXT)
    assert (read_spec(f"{tmp_path}/a.mlir").text, read_spec(f"{tmp_path}/a.mlir").name) == (TEXT, f"{tmp_path}/a.mlir")
    assert (read_spec("-", TEXT).text, read_spec("-", TEXT).name) == (TEXT, "<stdin>")


def test_a_file_with_a_colon_in_its_name_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a:b").write_text(TEXT)
    assert read_spec(f"{tmp_path}/a:b").text == TEXT


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("FOLDER/none.mlir", "cannot read .*none.mlir: No such file"),
        ("FOLDER", "cannot read .*: Is a directory"),
        ("FOLDER/binary", "is not UTF-8 text: invalid start byte at byte 0"),
        ("FOLDER/model.py", r"names no function\n  hint: write .*model.py:NAME"),
        ("FOLDER/none.py", r"names no function"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_way_out(tmp_path: Path, spec: str, message: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    (tmp_path / "model.py").write_text("import torch\n")
    with pytest.raises(MlirstitchError, match=message):
        read_spec(spec.replace("FOLDER", str(tmp_path)))
