"""Which part may import which, read from the sources: docs/architecture.md, "Import direction"."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "mlirstitch"
BASE = {"errors", "library_capabilities", "mesh", "options", "target", "target_file"}
ALLOWED = {
    "errors": set[str](),
    "library_capabilities": set[str](),
    "mesh": {"errors"},
    "options": {"errors"},
    "target": {"errors"},
    "target_file": {"errors", "target"},
    "dialects": BASE,
    "passes": BASE | {"dialects"},
    "lowering": BASE | {"dialects", "passes"},
    "runtime": {"errors", "library_capabilities"},
    "driver": BASE | {"dialects", "passes", "lowering", "runtime"},
    "__init__": BASE | {"passes", "driver"},
    "__main__": {"driver"},
}
CONFINED = {
    "torch_mlir": ("driver/import_torch.py",),
    "cuda": ("runtime/cuda.py",),
}
HEAVY_AT_IMPORT = {"torch", "torch_mlir", "cuda"}
IMPORT_TORCH = ("driver/import_torch.py", "driver/import_step.py", "driver/torch_import/")
DEFINE_MODELS = ("driver/bench/",)


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(tree: ast.Module, path: Path, *, at_import: bool) -> Iterator[tuple[str, int]]:
    """(module, line) of every import; ``at_import``: only those that run when the module is imported."""
    nodes = _executed(tree) if at_import else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                folder = path.relative_to(PACKAGE.parent).parent
                base = ".".join(folder.parts[: len(folder.parts) - node.level + 1])
                name = f"{base}.{node.module}" if node.module else base
            else:
                name = node.module or ""
            yield from ((f"{name}.{alias.name}", node.lineno) for alias in node.names)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run at import: not the bodies of functions, not what stands under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _executed(child)


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "mlirstitch" and len(parts) > 1 else None


def violations(path: Path, text: str) -> list[str]:
    """Every import of ``text``, standing at ``path``, that the architecture forbids."""
    relative = path.relative_to(PACKAGE).as_posix()
    own = relative.split("/")[0].removesuffix(".py")
    tree = ast.parse(text)
    found = []
    for module, line in imports(tree, path, at_import=False):
        layer = layer_of(module)
        if layer in ALLOWED and layer != own and layer not in ALLOWED.get(own, set()):
            found.append(f"{relative}:{line}: {own} imports {module}")
        root = module.split(".")[0]
        if root in CONFINED and relative not in CONFINED[root]:
            found.append(f"{relative}:{line}: {root} is imported in {', '.join(CONFINED[root])} only")
    for module, line in imports(tree, path, at_import=True):
        root = module.split(".")[0]
        exempt = relative.startswith(IMPORT_TORCH + DEFINE_MODELS) or relative in CONFINED.get(root, ())
        if root in HEAVY_AT_IMPORT and not exempt:
            found.append(f"{relative}:{line}: {root} is imported when the module is")
    return found


def test_every_import_follows_the_direction_of_the_layers() -> None:
    assert [fault for path in sources() for fault in violations(path, path.read_text())] == []


def test_every_file_belongs_to_a_layer() -> None:
    assert {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in sources()} <= set(ALLOWED)


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("passes/x.py", "from mlirstitch.lowering import kernel", "passes imports mlirstitch.lowering.kernel"),
        ("passes/x.py", "def f():\n    import mlirstitch.driver.cli", "x.py:2: passes imports mlirstitch.driver.cli"),
        ("dialects/x.py", "from ..passes.base import Pass", "dialects imports mlirstitch.passes.base.Pass"),
        ("runtime/x.py", "from mlirstitch.target import Target", "runtime imports mlirstitch.target.Target"),
        ("driver/x.py", "def f():\n    import torch_mlir.fx", "torch_mlir is imported in driver/import_torch.py only"),
        ("runtime/x.py", "def f():\n    from cuda import core", "cuda is imported in runtime/cuda.py only"),
        ("driver/x.py", "import torch", "torch is imported when the module is"),
        (
            "driver/x.py",
            "try:\n    import torch\nexcept ImportError:\n    pass",
            "torch is imported when the module is",
        ),
    ],
)
def test_a_forbidden_import_is_found(file: str, text: str, fault: str) -> None:
    assert any(fault in found for found in violations(PACKAGE / file, text))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("driver/x.py", "def f():\n    import torch"),
        ("driver/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("driver/import_torch.py", "import torch, torch_mlir"),
        ("lowering/kernel/x.py", "from ...passes.base import Pass"),
    ],
)
def test_a_legal_import_is_not_reported(file: str, text: str) -> None:
    assert violations(PACKAGE / file, text) == []


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_mlirstitch_is_light() -> None:
    loaded = run_python(
        "import sys; before = set(sys.modules); import mlirstitch; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    ).split()
    assert not {"torch", "torch_mlir", "mlir", "cuda", "numpy", "rich", "click"} & set(loaded)


def test_every_public_name_is_listed_and_resolves() -> None:
    run_python(
        "import mlirstitch\n"
        "for name in mlirstitch.__all__:\n"
        "    getattr(mlirstitch, name)\n"
        "assert set(mlirstitch.__all__) <= set(dir(mlirstitch))\n"
        "try:\n"
        "    mlirstitch.no_such_name\n"
        "except AttributeError as error:\n"
        "    assert 'no_such_name' in str(error)\n"
        "else:\n"
        "    raise SystemExit('no error')"
    )


BLOCKED = ("torch", "torch_mlir", "mlir", "llvm", "cuda", "click", "rich", "jsonschema", "safetensors", "ml_dtypes")


def test_the_runtime_imports_with_numpy_alone() -> None:
    paths = [path for path in sources() if path.relative_to(PACKAGE).parts[0] == "runtime" and path.name != "cuda.py"]
    modules = [module_name(path) for path in paths]
    run_python(
        f"import importlib, sys\nblocked = {BLOCKED!r}\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in blocked:\n"
        "            raise ImportError(f'{name} is blocked')\n"
        "sys.meta_path.insert(0, Block())\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)"
    )


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_no_other_module_loads_torch_on_the_way() -> None:
    exempt = (*IMPORT_TORCH, *DEFINE_MODELS, "runtime/cuda.py", "__main__.py")
    paths = [path for path in sources() if not path.relative_to(PACKAGE).as_posix().startswith(exempt)]
    loaded = run_python(
        "import importlib, sys\n"
        f"for name in {[module_name(path) for path in paths]!r}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules or 'torch_mlir' in sys.modules or 'cuda' in sys.modules:\n"
        "        raise SystemExit(f'{name} loads torch or cuda')\n"
        "print('mlir' in sys.modules)"
    )
    assert loaded == "True"
