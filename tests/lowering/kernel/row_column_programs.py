"""Cluster functions that reduce rows, and values of all rows down the columns."""

from __future__ import annotations

MAPS = """#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#col = affine_map<(d0, d1) -> (d1)>
#one = affine_map<(d0) -> (d0)>
#all = affine_map<(d0) -> ()>
"""
SUM = """{
  ^bb0(%x: f32, %acc: f32):
    %r = arith.addf %x, %acc : f32
    linalg.yield %r : f32
  }"""


def scaled_rows(rows: int, cols: int, element: str = "f32", columns: bool = True, total: bool = True) -> str:
    """``s = sum(x, 1)``, ``q = x * s``; then ``2 * sum(q, 0) + 1`` if ``columns`` and ``sum(s * s)`` if ``total``.

    Computed in f32; x and q are of type ``element``. Returns q, s and those.
    """
    full, row, col = f"tensor<{rows}x{cols}x{element}>", f"tensor<{rows}xf32>", f"tensor<{cols}xf32>"
    wide = "%w = arith.extf %x : %E to f32" if element != "f32" else "%w = arith.addf %x, %zero : f32"
    narrow = "%n = arith.truncf %p : f32 to %E" if element != "f32" else "%n = arith.addf %p, %zero : f32"
    kinds = [full, row] + [col] * columns + ["tensor<f32>"] * total
    names = ["%q", "%s"] + ["%o"] * columns + ["%t"] * total
    text = f"""{MAPS}func.func @f(%a: {full}) -> ({", ".join(kinds)}) {{
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %two = arith.constant 2.0 : f32
  %er = tensor.empty() : {row}
  %ef = tensor.empty() : {full}
  %ec = tensor.empty() : {col}
  %et = tensor.empty() : tensor<f32>
  %zr = linalg.fill ins(%zero : f32) outs(%er : {row}) -> {row}
  %zc = linalg.fill ins(%zero : f32) outs(%ec : {col}) -> {col}
  %zt = linalg.fill ins(%one : f32) outs(%et : tensor<f32>) -> tensor<f32>
  %s = linalg.generic {{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%zr : {row}) {{
  ^bb0(%x: %E, %acc: f32):
    {wide}
    %r = arith.addf %w, %acc : f32
    linalg.yield %r : f32
  }} -> {row}
  %q = linalg.generic {{indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %s : {full}, {row}) outs(%ef : {full}) {{
  ^bb0(%x: %E, %y: f32, %out: %E):
    {wide}
    %p = arith.mulf %w, %y : f32
    {narrow}
    linalg.yield %n : %E
  }} -> {full}
  %c = linalg.generic {{indexing_maps = [#id, #row, #col], iterator_types = ["reduction", "parallel"]}}
      ins(%a, %s : {full}, {row}) outs(%zc : {col}) {{
  ^bb0(%x: %E, %y: f32, %acc: f32):
    {wide}
    %p = arith.mulf %w, %y : f32
    %r = arith.addf %p, %acc : f32
    linalg.yield %r : f32
  }} -> {col}
  %o = linalg.generic {{indexing_maps = [#one, #one], iterator_types = ["parallel"]}}
      ins(%c : {col}) outs(%ec : {col}) {{
  ^bb0(%x: f32, %out: f32):
    %p = arith.mulf %x, %two : f32
    %r = arith.addf %p, %one : f32
    linalg.yield %r : f32
  }} -> {col}
  %t = linalg.generic {{indexing_maps = [#one, #all], iterator_types = ["reduction"]}}
      ins(%s : {row}) outs(%zt : tensor<f32>) {{
  ^bb0(%x: f32, %acc: f32):
    %p = arith.mulf %x, %x : f32
    %r = arith.addf %p, %acc : f32
    linalg.yield %r : f32
  }} -> tensor<f32>
  return {", ".join(names)} : {", ".join(kinds)}
}}"""
    return text.replace("%E", element)


def both_argmax(rows: int, cols: int) -> str:
    """Row sums, and for every column the largest element with its first row; the first NaN wins."""
    full, row, col, at = (
        f"tensor<{rows}x{cols}xf32>",
        f"tensor<{rows}xf32>",
        f"tensor<{cols}xf32>",
        f"tensor<{cols}xi64>",
    )
    return f"""{MAPS}func.func @f(%a: {full}) -> ({row}, {col}, {at}) {{
  %zero = arith.constant 0.0 : f32
  %none = arith.constant 0 : i64
  %inf = arith.constant 0xFF800000 : f32
  %er = tensor.empty() : {row}
  %ec = tensor.empty() : {col}
  %ei = tensor.empty() : {at}
  %zr = linalg.fill ins(%zero : f32) outs(%er : {row}) -> {row}
  %zc = linalg.fill ins(%inf : f32) outs(%ec : {col}) -> {col}
  %zi = linalg.fill ins(%none : i64) outs(%ei : {at}) -> {at}
  %s = linalg.generic {{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%zr : {row}) {SUM} -> {row}
  %m:2 = linalg.generic {{indexing_maps = [#id, #col, #col], iterator_types = ["reduction", "parallel"]}}
      ins(%a : {full}) outs(%zc, %zi : {col}, {at}) {{
  ^bb0(%x: f32, %v: f32, %p: i64):
    %i = linalg.index 0 : index
    %n = arith.index_cast %i : index to i64
    %big = arith.maximumf %x, %v : f32
    %gt = arith.cmpf ogt, %x, %v : f32
    %xn = arith.cmpf uno, %x, %x : f32
    %vn = arith.cmpf ord, %v, %v : f32
    %first = arith.andi %xn, %vn : i1
    %take = arith.ori %gt, %first : i1
    %q = arith.select %take, %n, %p : i64
    linalg.yield %big, %q : f32, i64
  }} -> ({col}, {at})
  return %s, %m#0, %m#1 : {row}, {col}, {at}
}}"""


def divided_rows(rows: int, cols: int, labels: int) -> str:
    """``n = 1 + sum(b)``, ``q = x / n`` and its row sums, and the total of the row sums divided by n."""
    full, row, flat = f"tensor<{rows}x{cols}xf32>", f"tensor<{rows}xf32>", f"tensor<{labels}xf32>"
    return f"""{MAPS}#two = affine_map<(d0, d1) -> ()>
#none = affine_map<() -> ()>
func.func @f(%a: {full}, %b: {flat}) -> ({full}, {row}, tensor<f32>) {{
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %er = tensor.empty() : {row}
  %ef = tensor.empty() : {full}
  %et = tensor.empty() : tensor<f32>
  %zr = linalg.fill ins(%zero : f32) outs(%er : {row}) -> {row}
  %zt = linalg.fill ins(%zero : f32) outs(%et : tensor<f32>) -> tensor<f32>
  %ot = linalg.fill ins(%one : f32) outs(%et : tensor<f32>) -> tensor<f32>
  %n = linalg.generic {{indexing_maps = [#one, #all], iterator_types = ["reduction"]}}
      ins(%b : {flat}) outs(%ot : tensor<f32>) {SUM} -> tensor<f32>
  %q = linalg.generic {{indexing_maps = [#id, #two, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %n : {full}, tensor<f32>) outs(%ef : {full}) {{
  ^bb0(%x: f32, %y: f32, %out: f32):
    %r = arith.divf %x, %y : f32
    linalg.yield %r : f32
  }} -> {full}
  %s = linalg.generic {{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%q : {full}) outs(%zr : {row}) {SUM} -> {row}
  %t = linalg.generic {{indexing_maps = [#one, #all], iterator_types = ["reduction"]}}
      ins(%s : {row}) outs(%zt : tensor<f32>) {SUM} -> tensor<f32>
  %u = linalg.generic {{indexing_maps = [#none, #none, #none], iterator_types = []}}
      ins(%t, %n : tensor<f32>, tensor<f32>) outs(%et : tensor<f32>) {{
  ^bb0(%x: f32, %y: f32, %out: f32):
    %r = arith.divf %x, %y : f32
    linalg.yield %r : f32
  }} -> tensor<f32>
  return %q, %s, %u : {full}, {row}, tensor<f32>
}}"""


def paired_rows(rows: int, cols: int) -> str:
    """``s = sum(x, 1)`` and ``q = sum(x * x, 1)``, which fold together, and the total of s; returns all three."""
    full, row = f"tensor<{rows}x{cols}xf32>", f"tensor<{rows}xf32>"
    return f"""{MAPS}func.func @f(%a: {full}) -> ({row}, {row}, tensor<f32>) {{
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : {row}
  %et = tensor.empty() : tensor<f32>
  %zr = linalg.fill ins(%zero : f32) outs(%er : {row}) -> {row}
  %zt = linalg.fill ins(%zero : f32) outs(%et : tensor<f32>) -> tensor<f32>
  %s = linalg.generic {{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%zr : {row}) {SUM} -> {row}
  %q = linalg.generic {{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%zr : {row}) {{
  ^bb0(%x: f32, %acc: f32):
    %p = arith.mulf %x, %x : f32
    %r = arith.addf %p, %acc : f32
    linalg.yield %r : f32
  }} -> {row}
  %t = linalg.generic {{indexing_maps = [#one, #all], iterator_types = ["reduction"]}}
      ins(%s : {row}) outs(%zt : tensor<f32>) {SUM} -> tensor<f32>
  return %s, %q, %t : {row}, {row}, tensor<f32>
}}"""


def shifted_columns(rows: int, cols: int) -> str:
    """``c = sum(x, 0)``, the total ``t`` of the row sums, and ``c + t``; returns t and c + t."""
    full, row, col = f"tensor<{rows}x{cols}xf32>", f"tensor<{rows}xf32>", f"tensor<{cols}xf32>"
    return f"""{MAPS}func.func @f(%a: {full}) -> (tensor<f32>, {col}) {{
  %zero = arith.constant 0.0 : f32
  %er = tensor.empty() : {row}
  %ec = tensor.empty() : {col}
  %et = tensor.empty() : tensor<f32>
  %zr = linalg.fill ins(%zero : f32) outs(%er : {row}) -> {row}
  %zc = linalg.fill ins(%zero : f32) outs(%ec : {col}) -> {col}
  %zt = linalg.fill ins(%zero : f32) outs(%et : tensor<f32>) -> tensor<f32>
  %s = linalg.generic {{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%zr : {row}) {SUM} -> {row}
  %c = linalg.generic {{indexing_maps = [#id, #col], iterator_types = ["reduction", "parallel"]}}
      ins(%a : {full}) outs(%zc : {col}) {SUM} -> {col}
  %t = linalg.generic {{indexing_maps = [#one, #all], iterator_types = ["reduction"]}}
      ins(%s : {row}) outs(%zt : tensor<f32>) {SUM} -> tensor<f32>
  %o = linalg.generic {{indexing_maps = [#one, #all, #one], iterator_types = ["parallel"]}}
      ins(%c, %t : {col}, tensor<f32>) outs(%ec : {col}) {{
  ^bb0(%x: f32, %y: f32, %out: f32):
    %r = arith.addf %x, %y : f32
    linalg.yield %r : f32
  }} -> {col}
  return %t, %o : tensor<f32>, {col}
}}"""
