"""stitching."""
