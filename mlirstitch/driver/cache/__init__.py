"""What the compiler keeps on disk from one run to the next: docs/cache.md."""

from mlirstitch.driver.cache.opening import open_cache
from mlirstitch.driver.cache.store import CacheInfo, Store

__all__ = ["CacheInfo", "Store", "open_cache"]
