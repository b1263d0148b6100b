from importlib import metadata

import pytest

from mlirstitch.driver import doctor
from mlirstitch.driver.doctor import Finding, examine, findings_text


@pytest.fixture
def versions(monkeypatch):
    """Replaces what is installed: None is missing, a text is a version."""
    real = metadata.version
    changed = {}

    def version(name):
        value = changed.get(name, real)
        if value is None:
            raise metadata.PackageNotFoundError(name)
        return real(name) if value is real else value

    monkeypatch.setattr(metadata, "version", version)
    return changed


def find(name):
    (finding,) = [finding for finding in examine() if finding.name == name]
    return finding


def test_a_missing_optional_package_says_how_to_get_it_and_blocks_nothing(versions):
    versions["torch-mlir"] = None
    finding = find("torch-mlir")
    assert (finding.status, finding.blocks) == ("missing", False)
    assert "pip install torch==2.13.0" in finding.remedy


def test_a_missing_required_package_blocks(versions):
    versions["numpy"] = None
    assert find("numpy").blocks


def test_another_version_than_the_tested_one_is_told(versions):
    versions["xtc-mlir-python-bindings"] = "21.0.0"
    finding = find("xtc-mlir-python-bindings")
    assert (finding.status, finding.blocks) == ("other version", True)
    assert "tested with 22.1.8" in finding.detail


def test_a_build_tag_is_no_other_version(versions):
    versions["torch"] = "2.13.0+cpu"
    assert find("torch").status == "ok"


def test_bindings_that_kill_their_process_are_found(monkeypatch):
    run = doctor._in_child
    monkeypatch.setattr(doctor, "_in_child", lambda code: run("import os; os.abort()"))
    assert find("MLIR bindings").status == "broken"
    assert find("MLIR bindings").blocks


def test_the_text_shows_the_remedy_under_what_is_not_ok():
    fine = Finding("numpy", "ok", "2.0", "everything")
    gone = Finding("ptxas", "missing", "not found", "registers", "pip install nvidia-cuda-nvcc")
    first, *rest = findings_text([fine, gone]).splitlines()
    assert first.split() == ["numpy", "ok", "2.0"]
    assert [line.strip() for line in rest[1:]] == ["needed for: registers", "get it:     pip install nvidia-cuda-nvcc"]
