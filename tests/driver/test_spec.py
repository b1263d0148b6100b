"""``file.py:factory`` and ``package.module:factory``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlirstitch.driver.spec import load_spec
from mlirstitch.errors import ImportFailure

FACTORIES = """
from beside import SCALE

def made():
    return (lambda x: x * SCALE), (1, 2)

def listed():
    return (lambda x: x), [3]

def single():
    return (lambda x: x), 4

def wrong():
    return lambda x: x

def pair_of_numbers():
    return 1, 2

def failing():
    raise ValueError("no such size")

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(FACTORIES)
    (tmp_path / "beside.py").write_text("SCALE = 2\n")
    (tmp_path / "broken.py").write_text("x = = 1\n")
    (tmp_path / "needy.py").write_text("import no_such_package\n")
    return tmp_path


def test_a_factory_in_a_file_is_called_and_may_import_files_beside_it(folder: Path) -> None:
    model, inputs = load_spec(f"{folder}/models.py:made")
    assert model(21) == 42
    assert inputs == (1, 2)
    assert str(folder) not in sys.path


@pytest.mark.parametrize(("name", "inputs"), [("listed", (3,)), ("single", (4,))])
def test_inputs_become_a_tuple(folder: Path, name: str, inputs: tuple[int, ...]) -> None:
    assert load_spec(f"{folder}/models.py:{name}")[1] == inputs


def test_a_factory_in_a_module_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert load_spec("models:made")[1] == (1, 2)


def test_a_program_that_was_imported_already_needs_no_inputs(folder: Path) -> None:
    (folder / "step.py").write_text(
        "import mlirstitch.driver.imported as imported\n"
        "def made():\n    return imported.ImportedModel('', (), (), {}, {}, None, None, None)\n"
    )
    model, inputs = load_spec(f"{folder}/step.py:made")
    assert type(model).__name__ == "ImportedModel"
    assert inputs == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("models.py", "names no model"),
        ("FOLDER/models.py:", "names no model"),
        ("FOLDER/models.py:a b", "names no model"),
        ("FOLDER/absent.py:made", "there is no file"),
        ("no_such_module_here:made", "there is no module no_such_module_here"),
        ("os.no_such_part:made", "there is no module os.no_such_part"),
        ("FOLDER/models.py:absent", "has no absent"),
        ("FOLDER/models.py:number", "is a int, not a function"),
        ("FOLDER/models.py:wrong", "returned a function, not"),
        ("FOLDER/models.py:pair_of_numbers", "the first value is a int"),
        ("FOLDER/models.py:failing", "models.py:20: .*raised ValueError: no such size"),
        ("FOLDER/broken.py:made", "cannot be imported: SyntaxError"),
        ("FOLDER/needy.py:made", "No module named 'no_such_package'"),
    ],
)
def test_a_spec_that_names_no_model_is_refused(folder: Path, spec: str, message: str) -> None:
    with pytest.raises(ImportFailure, match=message):
        load_spec(spec.replace("FOLDER", str(folder)))


def test_reading_a_spec_needs_no_torch(folder: Path) -> None:
    code = f"""
import sys
from mlirstitch.driver.spec import load_spec
load_spec({str(folder / "models.py:made")!r})
assert "torch" not in sys.modules and "mlir" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
