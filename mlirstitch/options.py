"""Options of one compilation. Each field is declared once: CLI flag, environment variable and documentation follow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mlirstitch.errors import MlirstitchError

LEVELS = ("linalg", "partitioned", "stitched", "gpu", "nvvm", "ptx")
"""Forms of the IR, in the order in which a compilation passes through them."""

KERNELS_TEXT_NAME = "kernels.stitched.mlir"
"""File name of the canonical text of the clusters, to which ``.loc`` lines in PTX refer."""


def option(default: Any, doc: str, choices: tuple[str, ...] = (), *, repeated: bool = False) -> Any:
    """Declare one option: its default, its documentation line and, if closed, its legal values.

    A ``repeated`` one is a list of texts with semicolons between them; callers may give a sequence of texts, command
    lines the flag more than once.
    """
    return field(default=default, metadata={"doc": doc, "choices": choices, "repeated": repeated})


@dataclass(frozen=True)
class CompileOptions:
    """How to compile. ``CompileOptions.from_environment()`` reads ``MLIRSTITCH_<FIELD>`` variables."""

    target: str = option("sm_90", "chip to compile for, for example sm_80 or sm_90")
    target_constants: str = option(
        "", "file with constants of the chip, as mlirstitch calibrate writes it (docs/calibration.md)"
    )
    numerics: str = option(
        "default",
        "numerics contract: default, strict or fast-math (docs/numerics.md)",
        ("default", "strict", "fast-math"),
    )
    library: str = option(
        "none",
        "who computes contractions: none = generated kernels for everything, auto = library calls for matmul-like ops "
        "that are worth a launch",
        ("none", "auto"),
    )
    grid_composition: str = option(
        "off",
        "whether blocks of a kernel may wait for each other through global memory, in cooperative launches: off or on",
        ("off", "on"),
    )
    tune: str = option(
        "off", "whether to try several schedules of every cluster: off or on (docs/tuning.md)", ("off", "on")
    )
    tune_limit: str = option("4", "schedules to try for a cluster with tune")
    keep_together: str = option(
        "", "ops that share a kernel, for example exp,sum or model.py:40-52 (docs/control.md)", repeated=True
    )
    keep_apart: str = option(
        "", "ops that share no kernel with others, or, as left|right, with each other", repeated=True
    )
    never_fuse: str = option("", "ops that are kernels of their own", repeated=True)
    from_level: str = option("linalg", "level of the input", LEVELS)
    to_level: str = option("ptx", "level to stop at", LEVELS)
    cache: str = option(
        "",
        "folder of the compile cache (docs/cache.md), or off (default: the platform's, ~/.cache/mlirstitch on Linux)",
    )
    cache_megabytes: str = option("1024", "size of the compile cache from which on the oldest entries are removed")
    dump: str = option("", "folder that receives one file per level")
    reproducer: str = option("", "folder for reproducers of failing stages (default: the working folder)")

    def __post_init__(self) -> None:
        for f in fields(self):
            choices = f.metadata["choices"]
            value = getattr(self, f.name)
            if choices and value not in choices:
                raise MlirstitchError(
                    f"option {f.name}: {value!r} is not one of {', '.join(choices)}",
                    hint=f"choose one of {', '.join(choices)}",
                )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> CompileOptions:
        """Defaults, then ``MLIRSTITCH_*`` variables, then ``overrides`` that are not None."""
        env = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for f in fields(cls):
            key = "MLIRSTITCH_" + f.name.upper()
            if key in env:
                values[f.name] = env[key]
        values.update({k: v for k, v in overrides.items() if v is not None})
        for f in fields(cls):
            given = values.get(f.name, "")
            if f.metadata["repeated"] and not isinstance(given, str):
                values[f.name] = ";".join(given)
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise MlirstitchError(
                f"unknown option {sorted(unknown)[0]!r}", hint="options: " + ", ".join(f.name for f in fields(cls))
            )
        return cls(**values)
