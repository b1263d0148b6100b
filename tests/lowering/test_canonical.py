"""The canonical text of clusters."""

from __future__ import annotations

from mlirstitch.dialects import parse_module
from mlirstitch.lowering.canonical import CANONICAL_NAME, canonical_text, parse_canonical

TEXT = """
module attributes {stitch.target = "sm_90"} {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %a = call @c(%x) : (tensor<8xf32>) -> tensor<8xf32> loc("FILE":LINE:0)
    return %a : tensor<8xf32>
  }
  func.func private @c(%x: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster} {
    %e = tensor.empty() : tensor<8xf32> loc("FILE":LINE:0)
    %r = linalg.exp ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) -> tensor<8xf32> loc("FILE":LINE:0)
    return %r : tensor<8xf32>
  }
}
"""


def canonical(file: str, line: int) -> str:
    return canonical_text(parse_module(TEXT.replace("FILE", file).replace("LINE", str(line)), file).operation)


def test_it_does_not_depend_on_where_the_user_wrote_the_model() -> None:
    assert canonical("a/model.py", 3) == canonical("/home/b/model.py", 77)


def test_it_holds_the_clusters_alone_and_reads_back_with_its_own_lines() -> None:
    text = canonical("model.py", 3)
    assert "@main" not in text
    assert "stitch.target" not in text
    module = parse_module(text)
    with module.context:
        parsed = parse_canonical(text)
        function = parsed.regions[0].blocks[0].operations[0].operation
        for op in function.regions[0].blocks[0].operations:
            location = op.location
            assert location.filename == CANONICAL_NAME
            assert op.name.split(".")[1] in text.splitlines()[location.start_line - 1]
