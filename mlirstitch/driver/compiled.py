"""A compiled program: its texts, its bundle, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mlirstitch.driver.calling import CallingConvention, positional
from mlirstitch.driver.tensors import array_to_tensor, as_array, is_torch_tensor
from mlirstitch.errors import MlirstitchError
from mlirstitch.runtime import Bundle, Executor, RunReport, open_device
from mlirstitch.runtime.dtypes import Array, numpy_dtype
from mlirstitch.runtime.program import Program as LaunchPlan

OnStep = Callable[[int, int, Any], None]


class Program:
    """A bundle that can be called like the model it was compiled from.

    Arguments and results have the model's structure. Results are torch tensors if any argument was one (or if there are
    no arguments and torch made the program), else numpy arrays. Tensors that the model updates in place are updated.
    """

    def __init__(self, bundle: Bundle, *, device: str = "emulator", out_spec: Any = None) -> None:
        self.bundle = bundle
        self._device = device
        self._out_spec = out_spec

    @property
    def target(self) -> str:
        """The chip it was compiled for."""
        return self.bundle.target["chip"]

    @property
    def launch_plan(self) -> LaunchPlan:
        """What one run does, step by step."""
        return self.bundle.program()

    @property
    def modules(self) -> Mapping[str, str]:
        """PTX text by module name."""
        return self.bundle.modules

    @property
    def ptx(self) -> str:
        """The PTX of all kernels; "" for a program without kernels."""
        return "\n".join(self.modules[name] for name in sorted(self.modules))

    @property
    def report(self) -> Mapping[str, Any]:
        """What the compiler did and why, as JSON data (``mlirstitch explain`` prints it)."""
        return self.bundle.report

    def save(self, path: str | Path) -> None:
        """Write the bundle: a folder, or one file if ``path`` ends in ``.zip``. Raises BundleError."""
        self.bundle.write(path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run with the model's own arguments and return what the model returns.

        Raises LaunchError if an argument does not fit (count, structure, shape, dtype) or a kernel is found faulty.
        """
        arrays, torch_wanted = self._arguments(args, kwargs)
        return self._results(self._executor.run(arrays), torch_wanted)

    def run_with_report(self, *args: Any, on_step: OnStep | None = None, **kwargs: Any) -> tuple[Any, RunReport]:
        """As calling it, with time and counters of every step."""
        arrays, torch_wanted = self._arguments(args, kwargs)
        outputs, report = self._executor.run_with_report(arrays, on_step=on_step)
        return self._results(outputs, torch_wanted), report

    @cached_property
    def _executor(self) -> Executor[Any]:
        return Executor(self.bundle, open_device(self._device))

    @cached_property
    def _calling(self) -> CallingConvention:
        if self.bundle.calling:
            return CallingConvention.from_json(dict(self.bundle.calling))
        signature = self.bundle.program().signature
        names = [value.name for value in signature.inputs]
        return positional(len(signature.inputs), len(signature.outputs), names)

    def _arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Array], bool]:
        """Arrays in the order of the signature, and whether the caller speaks torch."""
        leaves = self._calling.flatten_arguments(args, kwargs)
        values = self.bundle.program().signature.inputs
        arrays = []
        for leaf, value in zip(leaves, values, strict=True):
            array = as_array(leaf, value.name)
            if isinstance(leaf, bool | int | float) and not value.shape:
                array = array.astype(numpy_dtype(value.dtype))
            arrays.append(array)
        torch_wanted = any(is_torch_tensor(leaf) for leaf in leaves) or (not leaves and self._out_spec is not None)
        return arrays, torch_wanted

    def _results(self, outputs: Sequence[Array], torch_wanted: bool) -> Any:
        leaves = [array_to_tensor(array) for array in outputs] if torch_wanted else list(outputs)
        if self._out_spec is None:
            return self._calling.build_results(leaves)
        from torch.utils._pytree import tree_unflatten

        return tree_unflatten(self._calling.result_leaves(leaves), self._out_spec)


class Compiled(Program):
    """What :func:`mlirstitch.compile` returns: a program, with the IR of every level it went through.

    A compilation that was stopped before PTX has texts but no bundle. One whose weights are fake tensors has PTX and a
    launch plan, but neither runs nor can be saved.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        timings: Mapping[str, float],
        make_bundle: Callable[[], Bundle],
        *,
        make_report: Callable[[], Mapping[str, Any]],
        launch_plan: LaunchPlan | None = None,
        modules: Mapping[str, str] | None = None,
        out_spec: Any = None,
    ) -> None:
        self.timings = dict(timings)
        self._texts = dict(texts)
        self._make_bundle = make_bundle
        self._make_report = make_report
        self._launch_plan = launch_plan
        self._modules = modules
        self._device = "emulator"
        self._out_spec = out_spec

    @cached_property
    def bundle(self) -> Bundle:  # pyright: ignore[reportIncompatibleVariableOverride]  made when first needed
        """The product. Raises MlirstitchError if the compilation stopped before PTX."""
        return self._make_bundle()

    @property
    def launch_plan(self) -> LaunchPlan:
        """What one run does, step by step. Raises MlirstitchError if the compilation stopped before PTX."""
        return self._launch_plan or self.bundle.program()

    @property
    def modules(self) -> Mapping[str, str]:
        """PTX text by module name. Raises MlirstitchError if the compilation stopped before PTX."""
        return self._modules or self.bundle.modules

    @cached_property
    def report(self) -> Mapping[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What the compiler did and why, as JSON data; empty if it did not stitch."""
        return self._make_report()

    def text(self, level: str) -> str:
        """The module at ``level`` (``mlirstitch.options.LEVELS``), with locations; for "ptx", the PTX itself.

        Raises MlirstitchError if the compilation did not pass through that level.
        """
        if level not in self._texts:
            raise MlirstitchError(
                f"there is no text of level {level!r}", hint=f"levels passed through: {', '.join(self._texts)}"
            )
        return self._texts[level]
