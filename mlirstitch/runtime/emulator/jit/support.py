"""The support library: code that does not depend on a kernel, compiled once a process.

It runs the thread blocks of a range one after the other (``drive``), and performs the memory accesses that the code of
a kernel does not inline: those of diverged warps, of scattered addresses, and the first one of each allocation.
"""

from __future__ import annotations

from collections.abc import Callable

from mlirstitch.runtime.emulator.jit import rounding
from mlirstitch.runtime.emulator.jit.approximations import FUNCTIONS as FUNCTION_BODIES
from mlirstitch.runtime.emulator.jit.builder import WARP, Builder, Expression
from mlirstitch.runtime.emulator.jit.layout import (
    ALLOCATION_BYTES,
    BARRIER_BYTES,
    SITE_BYTES,
    Allocation,
    Barrier,
    Context,
    Fault,
    Site,
    Warp,
)

FUNCTIONS = (
    "load_1", "load_2", "load_4", "load_8", "store_1", "store_2", "store_4", "store_8", "drive", "divide_s64",
    "divide_u64", "remainder_s64", "remainder_u64", "shuffle", "spread", "ex2", "lg2", "rsqrt", "fma_rz", "fma_rm",
    "fma_rp", "resolve", "count",
)  # fmt: skip
"""Functions a kernel reaches through its context, in the order of their addresses there."""

SHARED_WINDOW = 1 << 48
LOCAL_WINDOW = 1 << 49


def function_offset(name: str) -> int:
    """Where the context holds the address of a function."""
    return Context.FUNCTIONS + 8 * FUNCTIONS.index(name)


def module_text() -> str:
    """The library as a module of the llvm dialect."""
    parts = [_report(), _resolve(), _keep(), _count(), _wavefronts(), _sectors(), _release(), _drive(), _spread()]
    parts += [_transfer(width, store) for store in (False, True) for width in (1, 2, 4, 8)]
    parts += [_division(name, signed) for name in ("divide", "remainder") for signed in (True, False)]
    parts.append(_shuffle())
    parts += [_function(name, 1, function) for name, function in FUNCTION_BODIES.items()]
    parts += [_directed(mode) for mode in ("rz", "rm", "rp")]
    parts.append(_addresses())
    return "module {\n" + "\n".join(parts) + "}\n"


def _addresses() -> str:
    b = Builder("addresses", ["ptr"], "")
    (out,) = b.parameters
    for position, name in enumerate(FUNCTIONS):
        b.store(b.define(f"llvm.mlir.addressof @{name} : !llvm.ptr", "ptr"), b.at(out, 8 * position))
    b.give_back()
    return b.finish()


def _report() -> str:
    """``report(context, warp, site, lane, fault, address)``: note a finding; null."""
    b = Builder("report", ["ptr", "ptr", "i64", "i64", "i64", "i64"], "ptr", inline=False)
    context, warp, site, lane, fault, address = b.parameters
    for offset, value in (
        (Context.FAULT, fault),
        (Context.FAULT_SITE, site),
        (Context.FAULT_LANE, lane),
        (Context.FAULT_WARP, b.field(warp, Warp.NUMBER, "i64")),
        (Context.FAULT_ADDRESS, address),
    ):
        b.set_field(context, offset, value)
    b.give_back(b.define("llvm.mlir.zero : !llvm.ptr", "ptr"))
    return b.finish()


def _fail(b: Builder, where: tuple[Expression, ...], fault: Fault, address: Expression) -> None:
    """Report and return null."""
    b.give_back(b.call("report", [*where, b.constant(fault, "i64"), address], "ptr"))


def _resolve() -> str:
    """``resolve(context, warp, site, lane, address, space) -> host address``, null after a finding."""
    b = Builder("resolve", ["ptr", "ptr", "i64", "i64", "i64", "i64"], "ptr", inline=False)
    context, warp, site, lane, address, space = b.parameters
    where = (context, warp, site, lane)
    record = b.at(b.field(context, Context.SITES, "ptr"), site * SITE_BYTES)
    size = b.field(record, Site.WIDTH, "i64") * b.field(record, Site.COUNT, "i64")
    misaligned = (address & (size - 1)).ne(0)
    with b.leave_when(space.eq(1)):
        limit = b.field(context, Context.SHARED_SIZE, "i64")
        with b.leave_when(limit.eq(0)):
            _fail(b, where, Fault.MISSING_SHARED, address)
        outside = address.gt(limit) | (address + size).gt(limit)
        with b.leave_when(outside | misaligned):
            _fail(b, where, Fault.SHARED, address)
        b.give_back(b.at(b.field(context, Context.SHARED, "ptr"), address))
    with b.leave_when(space.eq(2)):
        limit = b.field(context, Context.LOCAL_SIZE, "i64")
        with b.leave_when(limit.eq(0)):
            _fail(b, where, Fault.MISSING_LOCAL, address)
        outside = address.gt(limit) | (address + size).gt(limit)
        with b.leave_when(outside | misaligned):
            _fail(b, where, Fault.LOCAL, address)
        thread = b.field(warp, Warp.NUMBER, "i64") * WARP + lane
        own = thread * b.field(context, Context.LOCAL_STRIDE, "i64")
        b.give_back(b.at(b.field(context, Context.LOCAL, "ptr"), own + address))
    last = b.variable(b.field(context, Context.LAST_ALLOCATION, "ptr"))
    distance = address - b.field(b.load(last, "ptr"), Allocation.BASE, "i64")
    extent = b.field(b.load(last, "ptr"), Allocation.SIZE, "i64")
    with b.when(distance.ge(extent)):
        # Not the allocation accessed last: look for the one that starts last at or before the address.
        table = b.field(context, Context.ALLOCATIONS, "ptr")
        with b.loop(0, b.field(context, Context.ALLOCATION_COUNT, "i64")) as index:
            entry = b.at(table, index * ALLOCATION_BYTES)
            with b.when(b.field(entry, Allocation.BASE, "i64").le(address)):
                b.store(entry, last)
        b.store(b.load(last, "ptr"), b.at(context, Context.LAST_ALLOCATION))
    found = b.load(last, "ptr")
    distance = address - b.field(found, Allocation.BASE, "i64")
    extent = b.field(found, Allocation.SIZE, "i64")
    with b.leave_when(distance.gt(extent) | (distance + size).gt(extent)):
        _fail(b, where, Fault.OUTSIDE, address)
    with b.leave_when(misaligned):
        _fail(b, where, Fault.MISALIGNED, address)
    writes = b.field(record, Site.KIND, "i64").ne(0)
    with b.leave_when(writes & b.field(found, Allocation.WRITABLE, "i64").eq(0)):
        _fail(b, where, Fault.READ_ONLY, address)
    with b.when(b.field(context, Context.COUNTING, "i64").ne(0)):
        with b.when(b.field(record, Site.KIND, "i64").ne(1)):
            b.add_field(found, Allocation.LOADED, size)
        with b.when(writes):
            b.add_field(found, Allocation.STORED, size)
    host = address + b.field(found, Allocation.DELTA, "i64")
    b.give_back(b.define(f"llvm.inttoptr {host.name} : i64 to !llvm.ptr", "ptr"))
    return b.finish()


def _flush(b: Builder, context: Expression, record: Expression) -> None:
    """Add the bytes counted at a site to the counters and to the allocation it keeps."""
    lanes = b.field(record, Site.LANES, "i64")
    with b.when(lanes.ne(0)):
        amount = lanes * b.field(record, Site.WIDTH, "i64") * b.field(record, Site.COUNT, "i64")
        owner = b.field(record, Site.ALLOCATION, "ptr")
        store = b.field(record, Site.KIND, "i64").ne(0)
        for structure, stored, loaded in (
            (owner, Allocation.STORED, Allocation.LOADED),
            (context, Context.BYTES_STORED, Context.BYTES_LOADED),
        ):
            place = b.at(structure, store.where(b.constant(stored, "i64"), b.constant(loaded, "i64")))
            b.store(b.load(place, "i64") + amount, place)
        b.set_field(record, Site.LANES, b.constant(0, "i64"))


def _keep() -> str:
    """``keep(context, site, address)``: keep the allocation at the address for the fast path of the site."""
    b = Builder("keep", ["ptr", "i64", "i64"], "", inline=False)
    context, site, address = b.parameters
    record = b.at(b.field(context, Context.SITES, "ptr"), site * SITE_BYTES)
    need = b.field(record, Site.FAST_BYTES, "i64")
    found = b.field(context, Context.LAST_ALLOCATION, "ptr")
    extent = b.field(found, Allocation.SIZE, "i64")
    distance = address - b.field(found, Allocation.BASE, "i64")
    with b.when(need.ne(0) & need.le(extent) & distance.lt(extent)):
        _flush(b, context, record)
        b.set_field(record, Site.BASE, b.field(found, Allocation.BASE, "i64"))
        b.set_field(record, Site.LIMIT, extent - need)
        b.set_field(record, Site.DELTA, b.field(found, Allocation.DELTA, "i64"))
        b.store(found, b.at(record, Site.ALLOCATION))
    b.give_back()
    return b.finish()


def _lane_addresses(b: Builder, warp: Expression) -> Expression:
    return b.at(warp, Warp.ADDRESSES)


def _active(mask: Expression, lane: Expression) -> Expression:
    """Whether the mask has the bit of the lane."""
    return ((mask >> lane.resize("i32")) & 1).ne(0)


def _transfer(width: int, store: bool) -> str:
    """``load_w(context, warp, site, mask)``: elements of ``width`` bytes between memory and ``VALUES``; 1: finding.

    Addresses are in ``ADDRESSES``. Threads go one after the other, so the last one wins where several write.
    """
    kind = f"i{8 * width}"
    b = Builder(f"{'store' if store else 'load'}_{width}", ["ptr", "ptr", "i64", "i32"], "i32")
    context, warp, site, mask = b.parameters
    record = b.at(b.field(context, Context.SITES, "ptr"), site * SITE_BYTES)
    count = b.field(record, Site.COUNT, "i64")
    space = b.variable(b.field(record, Site.SPACE, "i64"))
    addresses = _lane_addresses(b, warp)
    values = b.at(warp, Warp.VALUES)
    lanes = b.constant(WARP, "i64")
    with b.when(b.load(space, "i64").eq(3)):
        # A generic address names its space; all threads must agree.
        first = b.variable(b.constant(-1, "i64"))
        with b.loop(0, lanes) as lane, b.when(_active(mask, lane)):
            place = b.at(addresses, lane * 8)
            address = b.load(place, "i64")
            high = address.ge(LOCAL_WINDOW, signed=True)
            inside = address.ge(SHARED_WINDOW, signed=True)
            found = inside.resize("i64") + high.resize("i64")
            with b.when(b.load(first, "i64").eq(-1)):
                b.store(found, first)
            with b.leave_when(b.load(first, "i64").ne(found)):
                fault = b.constant(Fault.MIXED_SPACES, "i64")
                b.call("report", [context, warp, site, lane, fault, address], "ptr")
                b.give_back(1)
            start = high.where(LOCAL_WINDOW, inside.where(b.constant(SHARED_WINDOW, "i64"), 0))
            b.store(address - start, place)
        b.store(b.load(first, "i64"), space)
    chosen = b.load(space, "i64")
    with b.loop(0, lanes) as lane, b.when(_active(mask, lane)):
        address = b.load(b.at(addresses, lane * 8), "i64")
        host = b.call("resolve", [context, warp, site, lane, address, chosen], "ptr")
        with b.leave_when(b.define(f"llvm.ptrtoint {host.name} : !llvm.ptr to i64", "i64").eq(0)):
            b.give_back(1)
        slot = b.at(values, lane * width)
        with b.loop(0, count) as element:
            inside, memory = b.at(slot, element * 256), b.at(host, element * width)
            if store:
                b.store(b.load(inside, kind), memory)
            else:
                b.store(b.load(memory, kind), inside)
    with b.when(b.field(context, Context.COUNTING, "i64").ne(0)):
        _call(b, "count", [context, warp, site, chosen, mask])
    with b.when(chosen.eq(0) & b.field(record, Site.SPACE, "i64").eq(0)):
        lane = mask.call("cttz", attributes="<{is_zero_poison = false}> ").resize("i64") & 31
        _call(b, "keep", [context, site, b.load(b.at(addresses, lane * 8), "i64")])
    b.give_back(0)
    return b.finish()


def _call(b: Builder, function: str, values: list[Expression]) -> None:
    names, types = ", ".join(v.name for v in values), ", ".join(v.text for v in values)
    b.line(f"llvm.call @{function}({names}) : ({types}) -> ()")


def _count() -> str:
    """``count(context, warp, site, space, mask)``: counters of an access that took the slow path."""
    b = Builder("count", ["ptr", "ptr", "i64", "i64", "i32"], "", inline=False)
    context, warp, site, space, mask = b.parameters
    record = b.at(b.field(context, Context.SITES, "ptr"), site * SITE_BYTES)
    size = b.field(record, Site.WIDTH, "i64") * b.field(record, Site.COUNT, "i64")
    active = mask.call("ctpop").resize("i64")
    kind = b.field(record, Site.KIND, "i64")
    with b.leave_when(active.eq(0) | space.eq(2)):
        b.give_back()
    with b.leave_when(space.eq(1)):
        _call(b, "wavefronts", [context, warp, mask, size])
        b.give_back()
    sectors = b.call("sectors", [warp, mask], "i64")
    with b.leave_when(kind.eq(0)):
        b.add_field(context, Context.LOAD_REQUESTS, 1)
        b.add_field(context, Context.BYTES_LOADED, active * size)
        b.add_field(context, Context.SECTORS_LOADED, sectors)
        b.give_back()
    b.add_field(context, Context.BYTES_STORED, active * size)
    b.add_field(context, Context.SECTORS_STORED, sectors)
    with b.leave_when(kind.eq(1)):
        b.add_field(context, Context.STORE_REQUESTS, 1)
        b.give_back()
    b.add_field(context, Context.ATOMIC_REQUESTS, 1)
    b.add_field(context, Context.BYTES_LOADED, active * size)
    b.give_back()
    return b.finish()


def _sectors() -> str:
    """``sectors(warp, mask) -> distinct address >> 5 of the active threads``."""
    b = Builder("sectors", ["ptr", "i32"], "i64")
    warp, mask = b.parameters
    addresses = _lane_addresses(b, warp)
    sector = b.load(addresses, "i64", True) >> 5
    active = b.define(f"llvm.bitcast {mask.name} : i32 to vector<32xi1>", "i1", True)
    # Threads in order, all active: a sector is new where it differs from the one before. Where it is smaller than the
    # one before, or threads are missing, compare with all earlier ones.
    before = b.shuffle(sector, [0, *range(WARP - 1)])
    descends = _bits(b, sector.lt(before))
    with b.leave_when(descends.eq(0) & mask.eq(-1)):
        b.give_back(_bits(b, sector.ne(before)).call("ctpop").resize("i64") + 1)
    total = b.variable(b.constant(0, "i64"))
    with b.loop(0, b.constant(WARP, "i64")) as lane, b.when(_active(mask, lane)):
        own = b.load(b.at(addresses, lane * 8), "i64") >> 5
        same = _bits(b, sector.eq(b.splat(own)) & active)
        earlier = (b.constant(1, "i32") << lane.resize("i32")) - 1
        fresh = (same & earlier).eq(0)
        b.store(b.load(total, "i64") + fresh.resize("i64"), total)
    b.give_back(b.load(total, "i64"))
    return b.finish()


def _bits(b: Builder, condition: Expression) -> Expression:
    """A vector of truth values as a 32-bit mask."""
    return b.define(f"llvm.bitcast {condition.name} : vector<32xi1> to i32", "i32")


def _wavefronts() -> str:
    """``wavefronts(context, warp, mask, size)``: count an access of shared memory, see ``docs/counters.md``."""
    b = Builder("wavefronts", ["ptr", "ptr", "i32", "i64"], "")
    context, warp, mask, size = b.parameters
    addresses = _lane_addresses(b, warp)
    words = b.prologue(f"llvm.alloca {b.constant(32, 'i32').name} x i64 : (i32) -> !llvm.ptr", "ptr")
    busy = b.prologue(f"llvm.alloca {b.constant(32, 'i32').name} x i64 : (i32) -> !llvm.ptr", "ptr")
    b.add_field(context, Context.SHARED_REQUESTS, 1)
    phases = (size >> 2).umax(1)
    lanes = b.constant(WARP, "i64").divide(phases, False)
    with b.loop(0, phases) as phase:
        used = b.variable(b.constant(0, "i64"))
        b.store(b.constant(0, "i64"), used)
        most = b.variable(b.constant(0, "i64"))
        b.store(b.constant(0, "i64"), most)
        b.store(b.constant(0, "i64", True), busy, 8)
        with b.loop(0, lanes) as inner:
            lane = phase * lanes + inner
            with b.when(_active(mask, lane)):
                first = b.load(b.at(addresses, lane * 8), "i64") >> 2
                with b.loop(0, phases) as part:
                    word = first + part
                    seen = b.variable(b.constant(0, "i64"))
                    b.store(b.constant(0, "i64"), seen)
                    with b.loop(0, b.load(used, "i64")) as earlier:
                        same = b.load(b.at(words, earlier * 8), "i64").eq(word).resize("i64")
                        b.store(b.load(seen, "i64") | same, seen)
                    with b.when(b.load(seen, "i64").eq(0)):
                        end = b.load(used, "i64")
                        b.store(word, b.at(words, end * 8))
                        b.store(end + 1, used)
                        bank = b.at(busy, (word & 31) * 8)
                        load = b.load(bank, "i64") + 1
                        b.store(load, bank)
                        b.store(b.load(most, "i64").umax(load), most)
        with b.when(b.load(used, "i64").ne(0)):
            b.add_field(context, Context.SHARED_WAVEFRONTS, b.load(most, "i64"))
            b.add_field(context, Context.SHARED_CONFLICTS, b.load(most, "i64") - 1)
    b.give_back()
    return b.finish()


def _spread() -> str:
    """``spread(warp, base, stride)``: write ``ADDRESSES``."""
    b = Builder("spread", ["ptr", "i64", "i64"], "i32")
    warp, base, stride = b.parameters
    with b.loop(0, b.constant(WARP, "i64")) as lane:
        b.store(base + stride * lane, b.at(_lane_addresses(b, warp), lane * 8))
    b.give_back(0)
    return b.finish()


def _release() -> str:
    """``release(context) -> i32``: let waiting threads go on whose barrier is complete; 1 if there are none.

    No thread of the block can run. Threads that have exited count as arrived.
    """
    b = Builder("release", ["ptr"], "i32")
    (context,) = b.parameters
    barriers = b.field(context, Context.BARRIERS, "ptr")
    count = b.field(context, Context.BARRIER_COUNT, "i64")
    warps = b.field(context, Context.WARP_COUNT, "i64")
    stride = b.field(context, Context.WARP_STRIDE, "i64")
    first = b.field(context, Context.WARPS, "ptr")
    zero = b.constant(0, "i64")
    exited = b.variable(zero)
    with b.loop(0, warps) as w:
        gone = b.field(b.at(first, w * stride), Warp.EXITED, "i32").call("ctpop")
        b.store(b.load(exited, "i64") + gone.resize("i64"), exited)
    ready = b.prologue(f"llvm.alloca {b.constant(1024, 'i32').name} x i8 : (i32) -> !llvm.ptr", "ptr")
    progress = b.variable(zero)
    left = b.variable(zero)
    with b.loop(0, count) as k:
        number = b.field(b.at(barriers, k * BARRIER_BYTES), Barrier.NUMBER, "i64")
        wanted = b.variable(zero)
        present = b.variable(zero)
        b.store(zero, wanted)
        b.store(zero, present)
        # Instructions that name the same barrier count together; the last one with waiting threads says how many.
        with b.loop(0, count) as other:
            entry = b.at(barriers, other * BARRIER_BYTES)
            with b.when(b.field(entry, Barrier.NUMBER, "i64").eq(number)), b.loop(0, warps) as w:
                waiting = b.load(b.at(b.at(first, w * stride), other * 4 + Warp.MASKS), "i32")
                with b.when(waiting.ne(0)):
                    b.store(b.load(present, "i64") + waiting.call("ctpop").resize("i64"), present)
                    b.store(b.field(entry, Barrier.THREADS, "i64"), wanted)
        here, need = b.load(present, "i64"), b.load(wanted, "i64")
        threads = b.field(context, Context.THREADS, "i64")
        total = here + need.eq(threads).where(b.load(exited, "i64"), 0)
        # Counts are of whole warps; a last warp that is not full counts as one.
        whole = total.eq(threads).where(((threads + (WARP - 1)) >> 5) << 5, total)
        enough = total.ge(need) | whole.ge(need)
        b.store((enough & here.ne(0)).resize("i8"), b.at(ready, k))
    with b.loop(0, count) as k:
        go = b.load(b.at(ready, k), "i8").ne(0)
        behind = b.field(b.at(barriers, k * BARRIER_BYTES), Barrier.TARGET, "i64")
        with b.loop(0, warps) as w:
            warp = b.at(first, w * stride)
            place = b.at(warp, k * 4 + Warp.MASKS)
            waiting = b.load(place, "i32")
            with b.when(waiting.ne(0)):
                with b.when(go):
                    pending = b.at(warp, (count + behind) * 4 + Warp.MASKS)
                    b.store(b.load(pending, "i32") | waiting, pending)
                    b.store(b.constant(0, "i32"), place)
                    b.store(b.field(warp, Warp.LIVE, "i32") | waiting, b.at(warp, Warp.LIVE))
                    b.store(b.constant(1, "i64"), progress)
                with b.when(~go):
                    b.store(b.constant(1, "i64"), left)
    b.set_field(context, Context.WAITING, b.load(left, "i64"))
    b.give_back(b.load(progress, "i64").eq(0).resize("i32"))
    return b.finish()


def _drive() -> str:
    """``drive(context, first, end) -> i32``: run the thread blocks ``first`` up to below ``end``; 1 after a finding."""
    b = Builder("drive", ["ptr", "i64", "i64"], "i32")
    context, start, end = b.parameters
    run = b.field(context, Context.RUN_WARP, "ptr")
    warps = b.field(context, Context.WARP_COUNT, "i64")
    stride = b.field(context, Context.WARP_STRIDE, "i64")
    first = b.field(context, Context.WARPS, "ptr")
    columns = b.field(context, Context.GRID_X, "i32").resize("i64")
    rows = b.field(context, Context.GRID_X + 4, "i32").resize("i64")
    barriers = b.field(context, Context.BARRIER_COUNT, "i64")
    shared = b.field(context, Context.SHARED_SIZE, "i64")
    unset = b.field(context, Context.UNINITIALISED, "i64")
    threads = b.field(context, Context.THREADS, "i64")
    local = threads * b.field(context, Context.LOCAL_STRIDE, "i64")
    with b.loop(start, end) as number:
        b.set_field(context, Context.BLOCK_NUMBER, number)
        line = number.divide(columns, False)
        position = (number - line * columns, line.remainder(rows, False), line.divide(rows, False))
        for axis, value in enumerate(position):
            b.set_field(context, Context.BLOCK_ID_X + 4 * axis, value.resize("i32"))
        _clear(b, b.field(context, Context.SHARED, "ptr"), shared)
        _clear(b, b.field(context, Context.LOCAL, "ptr"), local)
        b.set_field(context, Context.WAITING, b.constant(0, "i64"))
        with b.loop(0, warps) as w:
            warp = b.at(first, w * stride)
            full = b.field(warp, Warp.FULL, "i32")
            b.set_field(warp, Warp.LIVE, full)
            b.set_field(warp, Warp.EXITED, b.constant(0, "i32"))
            b.set_field(warp, Warp.ISSUED, b.constant(0, "i64"))
            b.store(full, b.at(warp, barriers * 4 + Warp.MASKS))
            frame = b.field(warp, Warp.FRAME, "i64")
            _clear(b, b.at(warp, frame), unset)
        again, done = b.label("again"), b.label("finished")
        b.jump(again)
        b.start(again)
        with b.loop(0, warps) as w:
            warp = b.at(first, w * stride)
            with b.when(b.field(warp, Warp.LIVE, "i32").ne(0)):
                status = b.call_pointer(run, [context, warp], "i32")
                with b.leave_when(status.ne(0)):
                    b.give_back(1)
        waiting = b.label("waiting")
        b.branch(b.field(context, Context.WAITING, "i64").eq(0), done, waiting)
        b.start(waiting)
        with b.leave_when(b.call("release", [context], "i32").ne(0)):
            b.set_field(context, Context.FAULT, b.constant(Fault.DEADLOCK, "i64"))
            b.give_back(1)
        b.jump(again)
        b.start(done)
    b.give_back(0)
    return b.finish()


def _clear(b: Builder, place: Expression, size: Expression) -> None:
    with b.when(size.ne(0)):
        zero = b.constant(0, "i8")
        b.line(
            f'"llvm.intr.memset"({place.name}, {zero.name}, {size.name}) <{{isVolatile = false}}> '
            ": (!llvm.ptr, i8, i64) -> ()"
        )


def _division(name: str, signed: bool) -> str:
    """``divide_s64(warp)`` and so on: ``VALUES`` by ``SECOND``, result in ``VALUES``; edge cases as the reference."""
    b = Builder(f"{name}_{'s' if signed else 'u'}64", ["ptr"], "i32")
    (warp,) = b.parameters
    with b.loop(0, b.constant(WARP, "i64")) as lane:
        place = b.at(b.at(warp, Warp.VALUES), lane * 8)
        a, divisor = b.load(place, "i64"), b.load(b.at(b.at(warp, Warp.SECOND), lane * 8), "i64")
        b.store(safe_division(a, divisor, name == "remainder", signed), place)
    b.give_back(0)
    return b.finish()


def safe_division(a: Expression, divisor: Expression, remainder: bool, signed: bool) -> Expression:
    """Quotient (all ones for a divisor of 0) or remainder (the dividend for a divisor of 0); wraps on overflow."""
    zero = divisor.eq(0)
    unsafe = zero | divisor.eq(-1) if signed else zero
    ordinary = unsafe.where(divisor.other(1), divisor)
    if remainder:
        result = a.remainder(ordinary, signed)
        if signed:
            result = divisor.eq(-1).where(a.other(0), result)
        return zero.where(a, result)
    result = a.divide(ordinary, signed)
    if signed:
        result = divisor.eq(-1).where(-a, result)
    return zero.where(a.other(-1), result)


def _function(name: str, count: int, body: Callable[..., Expression]) -> str:
    """A function of vectors of single precision: long code that kernels share."""
    b = Builder(name, ["f32"] * count, "f32", vectors=True)
    b.give_back(body(*b.parameters))
    return b.finish()


def _directed(mode: str) -> str:
    return _function(f"fma_{mode}", 3, lambda x, y, z: rounding.fma_small(x, y, z, "f32", mode))


def _shuffle() -> str:
    """``shuffle(warp)``: element ``SECOND[t]`` (32-bit) of the 32-bit ``VALUES`` to element t, in place."""
    b = Builder("shuffle", ["ptr"], "i32")
    (warp,) = b.parameters
    values, lanes = b.at(warp, Warp.VALUES), b.at(warp, Warp.SECOND)
    copy = b.at(warp, Warp.VALUES + 256)
    b.store(b.load(values, "i32", True), copy)
    with b.loop(0, b.constant(WARP, "i64")) as lane:
        chosen = b.load(b.at(lanes, lane * 4), "i32").resize("i64")
        b.store(b.load(b.at(copy, chosen * 4), "i32"), b.at(values, lane * 4))
    b.give_back(0)
    return b.finish()
