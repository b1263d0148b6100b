"""Partitioning from a user's point of view: a plan by name, by rules or from a file, and what comes of it."""

from mlirstitch.driver.partition.partitioned import Partitioned, partition

__all__ = ["Partitioned", "partition"]
