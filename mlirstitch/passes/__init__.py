"""Passes that rewrite IR of one level, and the pipelines they run in.

Importing this package registers every pass. One line per module that defines passes, in alphabetical order.
"""

from mlirstitch.passes import normalize, partitioning, stitching, verify_level

__all__ = ["normalize", "partitioning", "stitching", "verify_level"]
