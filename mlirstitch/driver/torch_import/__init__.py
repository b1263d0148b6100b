"""From a PyTorch program to a flat aten graph: export, own decompositions, checks, signature.

Everything here imports torch; ``driver/import_torch.py`` is the only caller and the only file that imports torch_mlir.
"""
