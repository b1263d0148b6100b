"""Cluster functions with row reductions, for any shape and type."""

from __future__ import annotations


def tensor(shape, element: str) -> str:
    return f"tensor<{''.join(f'{extent}x' for extent in shape)}{element}>"


def softmax(rows: int, cols: int, element: str = "f32") -> str:
    """``exp(x - max) / sum`` computed in f32, stored in ``element``."""
    wide, narrow = "", ""
    name = "%x"
    if element != "f32":
        wide = f"%w = arith.extf %x : {element} to f32"
        narrow = f"%n = arith.truncf %q : f32 to {element}"
        name = "%w"
    full, row = tensor((rows, cols), element), tensor((rows, 1), "f32")
    value = "%n" if narrow else "%q"
    return f"""#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0, 0)>
func.func @f(%a: {full}) -> {full} {{
  %inf = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : {row}
  %ef = tensor.empty() : {full}
  %i0 = linalg.fill ins(%inf : f32) outs(%er : {row}) -> {row}
  %z0 = linalg.fill ins(%zero : f32) outs(%er : {row}) -> {row}
  %m = linalg.generic {{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%i0 : {row}) {{
  ^bb0(%x: {element}, %acc: f32):
    {wide}
    %r = arith.maximumf {name}, %acc : f32
    linalg.yield %r : f32
  }} -> {row}
  %s = linalg.generic {{indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a, %m : {full}, {row}) outs(%z0 : {row}) {{
  ^bb0(%x: {element}, %t: f32, %acc: f32):
    {wide}
    %d = arith.subf {name}, %t : f32
    %e = math.exp %d : f32
    %r = arith.addf %e, %acc : f32
    linalg.yield %r : f32
  }} -> {row}
  %o = linalg.generic {{indexing_maps = [#id, #row, #row, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %m, %s : {full}, {row}, {row}) outs(%ef : {full}) {{
  ^bb0(%x: {element}, %t: f32, %u: f32, %out: {element}):
    {wide}
    %d = arith.subf {name}, %t : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %u : f32
    {narrow}
    linalg.yield {value} : {element}
  }} -> {full}
  return %o : {full}
}}"""


def fold(shape, reduced, element: str, op: str, initial: str) -> str:
    """One reduction of the dims ``reduced`` by ``op`` starting at the literal ``initial``."""
    dims = ", ".join(f"d{i}" for i in range(len(shape)))
    kept = [i for i in range(len(shape)) if i not in reduced]
    result = tensor([shape[i] for i in kept], element)
    full = tensor(shape, element)
    iterators = ", ".join('"reduction"' if i in reduced else '"parallel"' for i in range(len(shape)))
    maps = f"affine_map<({dims}) -> ({dims})>, affine_map<({dims}) -> ({', '.join(f'd{i}' for i in kept)})>"
    return f"""func.func @f(%a: {full}) -> {result} {{
  %c = arith.constant {initial} : {element}
  %e = tensor.empty() : {result}
  %i = linalg.fill ins(%c : {element}) outs(%e : {result}) -> {result}
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
      ins(%a : {full}) outs(%i : {result}) {{
  ^bb0(%x: {element}, %acc: {element}):
    %s = {op} %x, %acc : {element}
    linalg.yield %s : {element}
  }} -> {result}
  return %r : {result}
}}"""


def argmax(rows: int, cols: int, element: str = "f32", index: str = "i64") -> str:
    """Largest value and its first position; the first NaN wins."""
    full, values, places = tensor((rows, cols), element), tensor((rows,), element), tensor((rows,), index)
    return f"""#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @f(%a: {full}) -> ({values}, {places}) {{
  %inf = arith.constant {"0xFF800000" if element == "f32" else "0xFC00"} : {element}
  %zero = arith.constant 0 : {index}
  %ev = tensor.empty() : {values}
  %ei = tensor.empty() : {places}
  %v0 = linalg.fill ins(%inf : {element}) outs(%ev : {values}) -> {values}
  %i0 = linalg.fill ins(%zero : {index}) outs(%ei : {places}) -> {places}
  %r:2 = linalg.generic {{indexing_maps = [#id, #row, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%v0, %i0 : {values}, {places}) {{
  ^bb0(%x: {element}, %v: {element}, %p: {index}):
    %i = linalg.index 1 : index
    %n = arith.index_cast %i : index to {index}
    %m = arith.maximumf %x, %v : {element}
    %gt = arith.cmpf ogt, %x, %v : {element}
    %xn = arith.cmpf uno, %x, %x : {element}
    %vn = arith.cmpf ord, %v, %v : {element}
    %first = arith.andi %xn, %vn : i1
    %take = arith.ori %gt, %first : i1
    %q = arith.select %take, %n, %p : {index}
    linalg.yield %m, %q : {element}, {index}
  }} -> ({values}, {places})
  return %r#0, %r#1 : {values}, {places}
}}"""


def softmax_over(shape, axis: int, element: str = "f32") -> str:
    """``softmax`` over one dim of any rank, computed in f32."""
    rank = len(shape)
    dims = ", ".join(f"d{i}" for i in range(rank))
    kept = ", ".join("0" if i == axis else f"d{i}" for i in range(rank))
    iterators = ", ".join('"reduction"' if i == axis else '"parallel"' for i in range(rank))
    text = softmax(3, 5, element)
    text = text.replace("(d0, d1) -> (d0, d1)", f"({dims}) -> ({dims})").replace(
        "(d0, d1) -> (d0, 0)", f"({dims}) -> ({kept})"
    )
    text = text.replace('"parallel", "reduction"', iterators)
    text = text.replace('"parallel", "parallel"', ", ".join(['"parallel"'] * rank))
    small = [1 if i == axis else extent for i, extent in enumerate(shape)]
    return text.replace(tensor((3, 5), element), tensor(shape, element)).replace(
        tensor((3, 1), "f32"), tensor(small, "f32")
    )


def argmax_over(shape, axis: int, element: str = "f32") -> str:
    """Largest value and its first position along one dim of any rank; the first NaN wins."""
    rank = len(shape)
    dims = ", ".join(f"d{i}" for i in range(rank))
    kept = ", ".join(f"d{i}" for i in range(rank) if i != axis)
    small = [extent for i, extent in enumerate(shape) if i != axis]
    iterators = ", ".join('"reduction"' if i == axis else '"parallel"' for i in range(rank))
    text = argmax(3, 5, element)
    text = text.replace("(d0, d1) -> (d0, d1)", f"({dims}) -> ({dims})").replace(
        "(d0, d1) -> (d0)", f"({dims}) -> ({kept})"
    )
    text = text.replace('"parallel", "reduction"', iterators).replace("linalg.index 1", f"linalg.index {axis}")
    text = text.replace(tensor((3, 5), element), tensor(shape, element))
    for kind in (element, "i64"):
        text = text.replace(tensor((3,), kind), tensor(small, kind))
    return text
