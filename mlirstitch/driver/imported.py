"""What the importers of PyTorch programs give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlirstitch.driver.calling import CallingConvention

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils._pytree import TreeSpec

    from mlirstitch.driver.torch_import.program import Argument, Result


@dataclass(frozen=True)
class ImportedModel:
    """A PyTorch program as linalg on tensors.

    Attributes:
        mlir: text of a module with one public function ``@main``, locations included. Arguments and results carry
            ``stitch.name``, ``stitch.dtype``, arguments ``stitch.role``, updated arguments' results ``stitch.mutates``.
        arguments, results: the same as Python values, in the order of ``@main``.
        weights: argument position to the module's own tensor (weights and constants; no copy: a later in-place change
            of the module shows). Fake or meta tensors if the module holds such.
        mutations: result position to the position of the argument whose new contents the result is. These results
            come first.
        calling: how the user's call maps to inputs and results (kwargs, None and numbers included).
        in_spec, out_spec: the same as torch's tree specifications of ``(args, kwargs)`` and of the return value.
        requests: what markers in the model ask for, by the compile option that it adds to.
    """

    mlir: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    weights: dict[int, Tensor]
    mutations: dict[int, int]
    calling: CallingConvention
    in_spec: TreeSpec
    out_spec: TreeSpec
    requests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the arguments that the caller passes, in the order of ``calling``'s leaves."""
        return tuple(i for i, a in enumerate(self.arguments) if a.role == "input")

    @property
    def outputs(self) -> tuple[int, ...]:
        """Positions of the results that the caller gets back, in the order of ``calling``'s leaves."""
        return tuple(i for i in range(len(self.results)) if i not in self.mutations)
