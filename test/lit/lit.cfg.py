"""lit configuration: FileCheck and not from the LLVM wheel, mlirstitch-opt from the environment that runs lit."""

import importlib.util
import os
import sys
from pathlib import Path

import lit.formats


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"lit: the Python package {package!r} is missing; pip install -e '.[dev]'")
    return Path(spec.submodule_search_locations[0])


config.name = "mlirstitch"  # noqa: F821  lit hands `config` in
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir", ".test"]  # noqa: F821
config.excludes = ["Inputs"]  # noqa: F821
config.test_source_root = os.path.dirname(__file__)  # noqa: F821
config.test_exec_root = os.path.join(os.path.dirname(__file__), "Output")  # noqa: F821
tools = [Path(sys.executable).parent, _folder_of("llvm") / "bin", _folder_of("mlir") / "bin"]
config.environment["PATH"] = os.pathsep.join([*map(str, tools), os.environ["PATH"]])  # noqa: F821
config.environment["MLIRSTITCH_CACHE"] = "off"  # noqa: F821  the user's own cache is none of the tests' business
