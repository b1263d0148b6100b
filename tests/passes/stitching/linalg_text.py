"""Builds linalg text for tests: one function over f32 tensors, op by op."""

from __future__ import annotations

import itertools


class Text:
    """Collects ops; every method returns the name of the new value."""

    def __init__(self, **arguments: str) -> None:
        """``arguments``: shape by name, for example ``x="4x8"``."""
        self.types = {f"%{name}": f"tensor<{shape}xf32>" for name, shape in arguments.items()}
        self.arguments = list(self.types.items())
        self.lines: list[str] = []
        self._numbers = itertools.count()

    def _value(self, type_: str, line: str, source: str = "") -> str:
        name = f"%v{next(self._numbers)}"
        where = f' loc("model.py":{source}:0)' if source else ""
        self.lines.append(f"{name} = {line}{where}")
        self.types[name] = type_
        return name

    def empty(self, type_: str) -> str:
        """A tensor.empty."""
        return self._value(type_, f"tensor.empty() : {type_}")

    def map(self, op: str, *inputs: str, type: str = "", line: str = "") -> str:
        """Element-wise ``op`` (arith or math, f32) of tensors of one shape, or of trailing-1 operands ("rows")."""
        result = type or self.types[inputs[0]]
        rank = result.count("x")
        dims = [f"d{i}" for i in range(rank)]
        maps = []
        for value in inputs:
            own = [d if s != "1" else "0" for d, s in zip(dims, self.types[value][7:].split("x")[:-1], strict=True)]
            maps.append(f"affine_map<({', '.join(dims)}) -> ({', '.join(own)})>")
        maps.append(f"affine_map<({', '.join(dims)}) -> ({', '.join(dims)})>")
        names = [f"%i{i}" for i in range(len(inputs))]
        block = ", ".join(f"{name}: f32" for name in [*names, "%o"])
        return self._generic(maps, ["parallel"] * rank, inputs, self.empty(result), result, block, op, names, line)

    def reduce(self, op: str, value: str, dim: int, line: str = "") -> str:
        """Reduce one dim, keeping it with size 1; starts at zero."""
        shape = self.types[value][7:].split("x")[:-1]
        result = f"tensor<{'x'.join('1' if i == dim else s for i, s in enumerate(shape))}xf32>"
        dims = [f"d{i}" for i in range(len(shape))]
        kept = ["0" if i == dim else d for i, d in enumerate(dims)]
        maps = [
            f"affine_map<({', '.join(dims)}) -> ({', '.join(dims)})>",
            f"affine_map<({', '.join(dims)}) -> ({', '.join(kept)})>",
        ]
        kinds = ["reduction" if i == dim else "parallel" for i in range(len(shape))]
        zero = self._value("f32", "arith.constant 0.0 : f32")
        init = self._value(result, f"linalg.fill ins({zero} : f32) outs({self.empty(result)} : {result}) -> {result}")
        return self._generic(maps, kinds, (value,), init, result, "%i0: f32, %o: f32", op, ["%i0", "%o"], line)

    def _generic(
        self,
        maps: list[str],
        kinds: list[str],
        inputs: tuple[str, ...],
        init: str,
        result: str,
        block: str,
        op: str,
        operands: list[str],
        line: str,
    ) -> str:
        quoted = ", ".join(f'"{kind}"' for kind in kinds)
        types = ", ".join(self.types[value] for value in inputs)
        return self._value(
            result,
            f"linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{quoted}]}} "
            f"ins({', '.join(inputs)} : {types}) outs({init} : {result}) {{\n^bb0({block}):\n"
            f"  %r = {op} {', '.join(operands)} : f32\n  linalg.yield %r : f32\n}} -> {result}",
            line,
        )

    def matmul(self, left: str, right: str, line: str = "") -> str:
        """A matmul into zeros."""
        rows, columns = self.types[left][7:].split("x")[0], self.types[right][7:].split("x")[1]
        result = f"tensor<{rows}x{columns}xf32>"
        zero = self._value("f32", "arith.constant 0.0 : f32")
        init = self._value(result, f"linalg.fill ins({zero} : f32) outs({self.empty(result)} : {result}) -> {result}")
        return self._value(
            result,
            f"linalg.matmul ins({left}, {right} : {self.types[left]}, {self.types[right]}) "
            f"outs({init} : {result}) -> {result}",
            line,
        )

    def transpose(self, value: str) -> str:
        """A 2-d transpose as a generic."""
        rows, columns = self.types[value][7:].split("x")[:2]
        result = f"tensor<{columns}x{rows}xf32>"
        return self._value(
            result,
            "linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>], "
            f'iterator_types = ["parallel", "parallel"]}} ins({value} : {self.types[value]}) '
            f"outs({self.empty(result)} : {result}) {{\n^bb0(%i: f32, %o: f32):\n  linalg.yield %i : f32\n}}"
            f" -> {result}",
        )

    def op(self, text: str, type_: str) -> str:
        """Any other op."""
        return self._value(type_, text)

    def module(self, *results: str, library: str = "none") -> str:
        """The module's text, with the attributes that the first pass writes."""
        arguments = ", ".join(f"{name}: {type_}" for name, type_ in self.arguments)
        types = ", ".join(self.types[value] for value in results)
        body = "\n".join(self.lines)
        attributes = f'stitch.target = "sm_90", stitch.numerics = "default", stitch.library = "{library}"'
        return (
            f"module attributes {{{attributes}}} {{\nfunc.func @main({arguments}) -> ({types}) {{\n{body}\n"
            f"return {', '.join(results)} : {types}\n}}\n}}\n"
        )
