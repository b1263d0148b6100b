"""Template ``packed``: a cluster of independent parts becomes one launch, in which each part has blocks of its own.

See ``packed_kernel``. A part is emitted by whichever other template takes it; parts may read the same inputs. The
blocks of the launch are as large as those of its largest part, so schedules are chosen with one block size if the parts
offer one. What another template takes in one pass over an input it shares is one part.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NoReturn

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.analysis import build_program, check_program
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.kernel_body import BodyTemplate, KernelBody, Site
from mlirstitch.lowering.kernel.kernel_template import EmittingTemplate
from mlirstitch.lowering.kernel.memory_access import Accesses
from mlirstitch.lowering.kernel.packed_kernel import PackedKernel, PartRange, part_ranges
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.passes.stitching.graph import tensor_bytes
from mlirstitch.passes.stitching.independent import independent_parts, join_parts
from mlirstitch.passes.stitching.template import MOST_CANDIDATES, PACKED, Cluster, Schedule, templates
from mlirstitch.target import GRID_X_LIMIT, Target

MAX_PARTS = 32
"""Parts of one kernel: its code is that of all parts together."""

OFFERS = 8
"""Schedules that a part is asked for, to find a block size in common."""

_FIELDS = (
    *("grid", "block", "vector", "shared_bytes", "scratch", "tickets", "parameters"),
    *("thread_block_cluster", "cooperative"),
)
"""What a packed schedule says of its parts together."""

_SHARED_PASS = 4
"""An input that makes at least one in so many bytes of a part costs a pass over it."""


@dataclass(frozen=True)
class PackedTemplate(EmittingTemplate):
    """Independent parts, each with a range of the blocks."""

    name: str = PACKED

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        """None if the cluster falls into parts that other templates take, else why not."""
        try:
            _last.parts(cluster, target)
            check_program(build_program(cluster))
            _with_common_block(_last.offers(cluster, target))
        except PassError as error:
            return error.message
        return None

    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        """The best schedule. Raises :class:`PassError` if the template does not apply."""
        parts, offers = _last.parts(cluster, target), _last.offers(cluster, target)
        return [_whole(cluster, parts, _with_common_block(offers))]

    def candidates(self, cluster: Cluster, target: Target, limit: int = MOST_CANDIDATES) -> Sequence[Schedule]:
        """The best schedule, then that in which every part runs as it would alone; those that the chip can run.

        Raises :class:`PassError` if the template does not apply.
        """
        parts, offers = _last.parts(cluster, target), _last.offers(cluster, target)
        alone = _whole(cluster, parts, [offered[0] for offered in offers])
        found = dict.fromkeys([*self.schedules(cluster, target), alone])
        legal = (schedule for schedule in found if self.refusal(cluster, schedule, target) is None)
        return list(islice(legal, limit))

    def emit_body(self, cluster: Cluster, schedule: Schedule, site: Site, target: Target) -> Accesses:
        """Emit all parts; see :class:`BodyTemplate`."""
        ranges = self._ranges(cluster, schedule, target)
        program = build_program(cluster)

        def emit_part(part: PartRange, body: KernelBody) -> Accesses:
            template = _named(part.schedule.template)
            return template.emit_body(part.cluster, part.schedule, _Given(body), target)

        kernel = PackedKernel(cluster, program, schedule, site.open(program, schedule), emit_part)
        return kernel.emit(ranges)

    def _ranges(self, cluster: Cluster, schedule: Schedule, target: Target) -> list[PartRange]:
        """The parts and their places. Raises :class:`PassError` if the schedule is not that of its parts together."""
        parts = _last.parts(cluster, target)
        if len(schedule.parts) != len(parts):
            _refuse("parts", len(schedule.parts), f"{len(parts)}, one for each independent part of the cluster")
        threads = schedule.block[0]
        for number, part in enumerate(schedule.parts):
            _check_shape(number, part, threads, target)
        whole = _whole(cluster, parts, schedule.parts)
        for field in _FIELDS:
            given, wanted = getattr(schedule, field), getattr(whole, field)
            if given != wanted:
                _refuse(field, given, f"{wanted}, which its parts take together")
        if schedule.grid[0] > GRID_X_LIMIT:
            _refuse("grid x", schedule.grid[0], f"at most {GRID_X_LIMIT}")
        if threads > target.max_threads_per_block:
            _refuse("block x", threads, f"at most {target.max_threads_per_block}")
        return part_ranges(parts, schedule.parts)


@dataclass(eq=False)
class _Given:
    """The site of a part: its body is made already."""

    body: KernelBody

    def open(self, program: TensorProgram, schedule: Schedule) -> KernelBody:
        return self.body


def _parts(cluster: Cluster, target: Target) -> list[Cluster]:
    """The parts: independent ones, those that a template takes in one pass over an input they share together.

    Raises :class:`PassError` if there is one only, or too many.
    """
    found = independent_parts(cluster)
    if len(found) > 2 and all(_share_a_pass(found[0], part) for part in found[1:]):
        together = join_parts(cluster, found)  # one question where one by one would take a question each
        found = (together,) if _takes(together, target) else found
    parts: list[Cluster] = []
    for part in found:
        for number, other in enumerate(parts):
            if _share_a_pass(part, other):
                both = join_parts(cluster, (other, part))
                if _takes(both, target):
                    parts[number] = both
                    break
        else:
            parts.append(part)
    if len(parts) < 2:
        raise PassError("it does not fall into independent parts")
    if len(parts) > MAX_PARTS:
        raise PassError(f"it has {len(parts)} independent parts, at most {MAX_PARTS} go into one kernel")
    return parts


def _takes(part: Cluster, target: Target) -> bool:
    """Some template computes the part."""
    return any(template.applies(part, target) is None for template in _body_templates())


def _share_a_pass(first: Cluster, second: Cluster) -> bool:
    """Both read a tensor that is a good deal of all the bytes of one of them."""
    total = min(sum(tensor_bytes(value) for value in (*part.inputs, *part.outputs)) for part in (first, second))
    return any(value in second.inputs and tensor_bytes(value) * _SHARED_PASS >= total > 0 for value in first.inputs)


def _body_templates() -> list[BodyTemplate]:
    """The templates whose kernels can be parts."""
    return [found for found in templates() if found.name != PACKED and isinstance(found, BodyTemplate)]


def _named(name: str) -> BodyTemplate:
    for template in _body_templates():
        if template.name == name:
            return template
    known = ", ".join(template.name for template in _body_templates())
    raise PassError(f"no template of parts is named {name!r}", hint=f"templates of parts: {known}")


class _LastParts:
    """The parts of the cluster asked about last, with their schedules: questions about one come one after the other."""

    def __init__(self) -> None:
        self._cluster: weakref.ref[Cluster] | None = None
        self._target: Target | None = None
        self._parts: list[Cluster] = []
        self._offers: list[list[Schedule]] = []

    def parts(self, cluster: Cluster, target: Target) -> list[Cluster]:
        """The parts. Raises :class:`PassError` if there is nothing to pack."""
        if self._cluster is None or self._cluster() is not cluster or self._target != target:
            self._parts, self._offers = _parts(cluster, target), []
            self._cluster, self._target = weakref.ref(cluster), target
        return self._parts

    def offers(self, cluster: Cluster, target: Target) -> list[list[Schedule]]:
        """For each part its schedules, best first. Raises :class:`PassError` if a part has none."""
        parts = self.parts(cluster, target)
        if not self._offers:
            self._offers = _offers(parts, target)
        return self._offers


_last = _LastParts()


def _offers(parts: Sequence[Cluster], target: Target) -> list[list[Schedule]]:
    """For each part its best schedule; if their blocks differ in size, further ones of the parts with small blocks."""
    best = [_best(part, target) for part in parts]
    largest = max(schedule.block[0] for _, schedule in best)
    offers: list[list[Schedule]] = []
    for part, (template, schedule) in zip(parts, best, strict=True):
        found = [schedule]
        if schedule.block[0] < largest:
            more = template.candidates(part, target, OFFERS)
            found += [other for other in more if other != schedule and _is_alike(other, schedule, target)]
        offers.append(found)
    return offers


def _best(part: Cluster, target: Target) -> tuple[BodyTemplate, Schedule]:
    """The template of a part, and the best of its schedules that goes with other parts."""
    reasons: list[str] = []
    for template in _body_templates():
        why = template.applies(part, target)
        if why is None:
            for offered in (template.schedules, template.candidates):
                for schedule in offered(part, target):
                    why = _shape_problem(schedule, target) or template.refusal(part, schedule, target)
                    if why is None:
                        return template, schedule
        reasons.append(f"{template.name}: {why}")
    raise PassError(f"no template takes an independent part of it: {'; '.join(reasons)}")


def _is_alike(schedule: Schedule, best: Schedule, target: Target) -> bool:
    """It differs from the best schedule in the size of its blocks, hardly in what a thread does."""
    if _shape_problem(schedule, target) is not None:
        return False
    if (schedule.vector, schedule.shared_bytes) != (best.vector, best.shared_bytes):
        return False
    if schedule.parameter("mode") != best.parameter("mode"):
        return False
    if (schedule.parameter("splits", 1) > 1) != (best.parameter("splits", 1) > 1):
        return False
    if 2 * schedule.grid[0] < min(best.grid[0], target.sms):
        return False  # too few blocks for the chip
    threads, wanted = (found.grid[0] * found.block[0] for found in (schedule, best))
    return wanted <= 2 * threads and threads <= 2 * wanted


def _shape_problem(schedule: Schedule, target: Target) -> str | None:
    """Why a schedule cannot be that of a part, or None."""
    if schedule.shared_bytes and schedule.shared_bytes + target.shared_bytes_static > target.shared_bytes_block:
        return f"{schedule.shared_bytes} bytes of dynamic shared memory, which may leave too little to the others"
    if schedule.cluster_blocks > 1 or schedule.cooperative:
        return "blocks that wait for each other"
    if schedule.grid[1:] != (1, 1) or schedule.block[1:] != (1, 1):
        return f"grid {list(schedule.grid)} and block {list(schedule.block)}"
    return None


def _check_shape(number: int, part: Schedule, threads: int, target: Target) -> None:
    problem = _shape_problem(part, target)
    if problem is not None:
        _refuse(f"part {number}", problem, "one of blocks along x that run in any order")
    own = part.block[0]
    if own > threads or own < 1 or (own != threads and own % WARP):
        _refuse(f"block x of part {number}", own, f"{threads} or fewer whole warps")


def _with_common_block(offers: Sequence[Sequence[Schedule]]) -> list[Schedule]:
    """For each part one of its schedules: all of one block size if possible, or the fewest idle threads.

    A step down a part's list counts a quarter of halving the share of the block's threads that the part uses.
    """
    sizes = sorted({schedule.block[0] for offered in offers for schedule in offered})
    best: tuple[float, int, list[Schedule]] | None = None
    for size in sizes:
        chosen: list[Schedule] = []
        cost = 0.0
        for offered in offers:
            usable = [
                (_cost(rank, schedule, size), rank) for rank, schedule in enumerate(offered) if _fits(schedule, size)
            ]
            if not usable:
                break
            least, rank = min(usable)
            cost += least
            chosen.append(offered[rank])
        if len(chosen) == len(offers) and (best is None or (cost, size) < best[:2]):
            best = cost, size, chosen
    if best is None:
        raise PassError("blocks of its parts do not go together")
    return best[2]


def _fits(schedule: Schedule, size: int) -> bool:
    threads = schedule.block[0]
    return threads == size or (threads < size and threads % WARP == 0)


def _cost(rank: int, schedule: Schedule, size: int) -> float:
    return rank / 4 + max(0, (size // max(1, schedule.block[0])).bit_length() - 1)


def _whole(cluster: Cluster, parts: Sequence[Cluster], schedules: Sequence[Schedule]) -> Schedule:
    """The schedule of the launch in which the parts run."""
    positions = {op: position for position, op in enumerate(cluster.ops)}
    schemes = {
        positions[part.ops[position]]: scheme
        for part, schedule in zip(parts, schedules, strict=True)
        for position, scheme in schedule.schemes
    }
    return Schedule(
        template=PACKED,
        grid=(sum(schedule.grid[0] for schedule in schedules), 1, 1),
        block=(max(schedule.block[0] for schedule in schedules), 1, 1),
        vector=max(schedule.vector for schedule in schedules),
        shared_bytes=max(schedule.shared_bytes for schedule in schedules),
        schemes=tuple(sorted(schemes.items())),
        scratch=tuple(buffer for schedule in schedules for buffer in schedule.scratch),
        tickets=sum(schedule.tickets for schedule in schedules),
        parts=tuple(replace(schedule, schemes=()) for schedule in schedules),
    )


def _refuse(what: str, value: object, wanted: str) -> NoReturn:
    raise PassError(
        f"stitch.schedule: {what} is {value}, not {wanted}",
        hint="correct the schedule; mlirstitch compile --to stitched shows the one that the compiler chooses",
    )
