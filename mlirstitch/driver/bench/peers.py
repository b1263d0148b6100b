"""What other compilers make of the benchmark's programs at real size, in f32, and what a plan by stages needs.

Recorded once: the same imported modules were compiled with each of them, untuned, one setting each, and launches and
the bytes of their arguments were counted. ``reference`` is a count by stages between contractions (every stage one
kernel), ``epilogues`` the same with what a library routine can take in as an epilogue; neither is a proven bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlirstitch.driver.bench.rows import Row

COMPARED = {"size": "real", "dtype": "f32", "target": "sm_90"}
"""What the recorded figures are about."""


@dataclass(frozen=True)
class Figures:
    """Launches of memory-bound and of compute-bound kernels, and megabytes (10**6) of arguments if known.

    ``compiled``: whether the program compiled to the end; else the figures are those of its plan.
    """

    memory_bound: int
    compute_bound: int
    megabytes: int | None = None
    compiled: bool = True

    @property
    def launches(self) -> int:
        """Kernels of both sorts."""
        return self.memory_bound + self.compute_bound

    @property
    def is_model(self) -> bool:
        """Whether there are contractions."""
        return self.compute_bound > 0

    def __str__(self) -> str:
        size = "" if self.megabytes is None else f" / {self.megabytes}"
        return f"{self.memory_bound}+{self.compute_bound}{size}" + ("" if self.compiled else "*")


@dataclass(frozen=True)
class Peers:
    """The recorded figures of one workload."""

    reference: Figures
    epilogues: Figures
    xla: Figures
    iree: Figures
    inductor: Figures


def _alone(xla: Figures, iree: Figures, inductor: Figures, megabytes: int | None = None, launches: int = 1) -> Peers:
    """A program without contractions: epilogues change nothing."""
    reference = Figures(launches, 0, megabytes)
    return Peers(reference, reference, xla, iree, inductor)


_ONE = Figures(1, 0)

PEERS: Mapping[str, Peers] = {
    "softmax": _alone(_ONE, _ONE, _ONE),
    "attn_scores": _alone(_ONE, _ONE, _ONE),
    "layernorm": _alone(_ONE, _ONE, _ONE),
    "rmsnorm": _alone(_ONE, _ONE, _ONE),
    "gelu_bias_res_ln": _alone(_ONE, _ONE, _ONE),
    "adam": _alone(Figures(3, 0), _ONE, _ONE),
    "bn_relu": _alone(Figures(2, 0), _ONE, _ONE),
    "log_softmax": _alone(Figures(5, 0, 2009), Figures(1, 0, compiled=False), Figures(1, 0, 1000), 1000),
    "xent_fwd_bwd": _alone(Figures(13, 0, 4514), Figures(8, 0, compiled=False), Figures(3, 0, 1500), 1000),
    "ln_fwd_bwd": _alone(Figures(7, 0, 505), Figures(5, 0, compiled=False), Figures(4, 0, 304), 252, 2),
    "groupnorm": _alone(Figures(8, 0, 169), Figures(4, 0, 126), Figures(3, 0, 126), 84),
    "bert_layer": Peers(
        Figures(4, 8, 167), Figures(3, 8, 142), Figures(11, 6, 219), Figures(3, 8, 142), Figures(8, 8, 192)
    ),
    "bert_base": Peers(
        Figures(51, 97, 2010),
        Figures(38, 97, 1708),
        Figures(112, 73, 2413),
        Figures(38, 97, 1710),
        Figures(98, 97, 2409),
    ),
    "gpt2_block": Peers(
        Figures(5, 8, 1324), Figures(3, 8, 1199), Figures(10, 6, 1401), Figures(3, 8, 1186), Figures(9, 8, 1425)
    ),
    "t5_block": Peers(
        Figures(8, 8, 642), Figures(6, 8, 558), Figures(10, 6, 724), Figures(3, 8, 517), Figures(9, 8, 675)
    ),
    "vit_block": Peers(
        Figures(5, 8, 1022), Figures(3, 8, 828), Figures(10, 6, 1133), Figures(3, 8, 809), Figures(9, 8, 1177)
    ),
    "swin_block": Peers(
        Figures(6, 8, 446), Figures(4, 8, 349), Figures(14, 6, 553), Figures(15, 8, 504), Figures(10, 8, 542)
    ),
    "dien": Peers(
        Figures(110, 109, 95),
        Figures(6, 109, 60),
        Figures(112, 107, 113),
        Figures(112, 108, 380),
        Figures(113, 109, 119),
    ),
    "crnn": Peers(
        Figures(110, 117, 212),
        Figures(5, 117, 195),
        Figures(120, 112, 508),
        Figures(132, 117, 207, compiled=False),
        Figures(122, 117, 237),
    ),
    "asr_encoder": Peers(
        Figures(27, 51, 559), Figures(19, 51, 460), Figures(53, 39, 545), Figures(63, 51, 532), Figures(51, 51, 636)
    ),
    "llama_block": Peers(
        Figures(9, 9, 1397), Figures(5, 9, 1300), Figures(17, 7, 1630), Figures(10, 9, 1337), Figures(10, 9, 1430)
    ),
    "evo_row_attn": Peers(
        Figures(8, 8, 2053), Figures(4, 8, 1784), Figures(10, 8, 2657), Figures(3, 8, 1784), Figures(8, 8, 2120)
    ),
    "bert_layer_train": Peers(
        Figures(15, 24, 541),
        Figures(13, 24, 529),
        Figures(38, 20, 664),
        Figures(14, 28, compiled=False),
        Figures(31, 24, 561),
    ),
}
"""By workload; IREE is at O3."""


def comparable(row: Row) -> bool:
    """Whether the recorded figures are about what the row measured."""
    same = all(row[name] == value for name, value in COMPARED.items())
    return same and "launches" in row and row["workload"] in PEERS
