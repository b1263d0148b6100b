"""Partitioning: SuperScaler's three primitives over linalg, communication found from layouts (arXiv 2301.08984)."""
