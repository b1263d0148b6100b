"""What the stages leave, as data: it goes to the cache and comes back without loading MLIR."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class StageResult:
    """What :func:`mlirstitch.driver.stages.run_stages` leaves.

    Attributes:
        texts: the module's text at every level that was passed through, with source locations.
        kernels_text: canonical text of the clusters, to which ``.loc`` lines in PTX refer; "" if not stitched here.
        ptx: PTX text by module name; empty unless the ptx level was reached.
        program: launch plan (docs/manifest.md, "A program"); None unless the gpu level was reached.
        timings: seconds by stage name.
        settings: ``target``, ``numerics`` and ``library`` as the module states them. Below linalg they are those the
            module was made with, whatever the options say. ``target_constants``, where the module has any: their
            SHA-256.
    """

    texts: dict[str, str]
    kernels_text: str
    ptx: dict[str, str]
    program: dict[str, Any] | None
    timings: dict[str, float]
    settings: dict[str, str]

    def encode(self) -> bytes:
        """As JSON in UTF-8, without the timings: equal results give equal bytes. Order of names is kept."""
        return json.dumps(asdict(replace(self, timings={})), ensure_ascii=False).encode()

    @staticmethod
    def decode(content: bytes) -> StageResult:
        """The result that was encoded; no timings."""
        return StageResult(**json.loads(content))
