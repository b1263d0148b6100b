"""Which instructions exist: operand counts, types and modifiers of every opcode the engines implement.

A mnemonic outside this table is refused when the kernel is loaded, never silently misread.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirstitch.runtime.emulator.ptx.syntax import TYPE_BYTES

UNSIGNED = frozenset({"u16", "u32", "u64"})
SIGNED = frozenset({"s16", "s32", "s64"})
INTEGER = UNSIGNED | SIGNED
BITS = frozenset({"b16", "b32", "b64"})
PACKED = frozenset({"f16x2", "bf16x2"})
HALF = frozenset({"f16", "bf16"}) | PACKED
FLOAT = frozenset({"f32", "f64"}) | HALF
_PAIRS = frozenset({"f32x2"})
_BYTES = frozenset({"b8", "u8", "s8"})
_ANY = _BYTES | INTEGER | BITS | frozenset({"f16", "bf16", "f32", "f64"})
_SCALAR = _ANY - {"b8", "b16", "b32", "b64"}
_ROUND = frozenset({"rn", "rz", "rm", "rp"})
_ORDER = frozenset({"relaxed", "acquire", "release", "acq_rel", "sc", "cta", "cluster", "gpu", "sys"})
_MEMORY = _ORDER | {"volatile", "weak", "mmio", "unified", "shared::cluster"}
_CACHE = frozenset({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"})
COMPARISONS = frozenset(
    ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
)  # fmt: skip
SPACES = frozenset({"global", "shared", "local", "const", "param"})
ATOMIC_OPERATIONS = frozenset({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"})
MATRIX_SHAPES: dict[str, tuple[int, int, int]] = {
    "m8n8k4": (8, 8, 4), "m16n8k4": (16, 8, 4), "m16n8k8": (16, 8, 8), "m16n8k16": (16, 8, 16),
    "m16n8k32": (16, 8, 32),
}  # fmt: skip
"""Rows, columns, inner dimension of the matrix shapes."""
_MATRICES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("f32", "f16", "f16", "f32"): ("m16n8k8", "m16n8k16"),
    ("f16", "f16", "f16", "f16"): ("m16n8k8", "m16n8k16"),
    ("f32", "bf16", "bf16", "f32"): ("m16n8k8", "m16n8k16"),
    ("f32", "tf32", "tf32", "f32"): ("m16n8k4", "m16n8k8"),
    **{("s32", a, b, "s32"): ("m16n8k16", "m16n8k32") for a in ("s8", "u8") for b in ("s8", "u8")},
    ("f64", "f64", "f64", "f64"): ("m8n8k4",),
}
"""Shapes by the types of D, A, B, C."""
_ATOMIC_TYPES = INTEGER | BITS | FLOAT
_CLUSTER_WIDE = frozenset({"ld", "st", "atom", "red", "cvta", "isspacep", "mbarrier", "fence"})
_PROMOTED = ("L1::", "L2::", "level::")


@dataclass(frozen=True)
class Form:
    """What follows an opcode.

    Attributes:
        outputs: destination registers.
        inputs: least and most source operands.
        types: for every type in the mnemonic, the ones allowed; () for none.
        modifiers: allowed modifiers.
    """

    outputs: int
    inputs: tuple[int, int]
    types: tuple[frozenset[str], ...]
    modifiers: frozenset[str] = frozenset()


def _form(outputs: int, inputs: int | tuple[int, int], types: object = (), modifiers: object = "") -> Form:
    counts = (inputs, inputs) if isinstance(inputs, int) else inputs
    groups = types if isinstance(types, tuple) else (types,)
    words = frozenset(modifiers.split()) if isinstance(modifiers, str) else modifiers
    return Form(outputs, counts, tuple(groups), words)  # type: ignore[arg-type]


FORMS: dict[str, Form] = {
    "add": _form(1, 2, INTEGER | FLOAT | _PAIRS, _ROUND | {"ftz", "sat", "cc"}),
    "sub": _form(1, 2, INTEGER | FLOAT | _PAIRS, _ROUND | {"ftz", "sat", "cc"}),
    "mul": _form(1, 2, INTEGER | FLOAT | _PAIRS, _ROUND | {"ftz", "sat", "lo", "hi", "wide"}),
    "mad": _form(1, 3, INTEGER | {"f32", "f64"}, _ROUND | {"ftz", "sat", "lo", "hi", "wide", "cc"}),
    "fma": _form(1, 3, FLOAT | _PAIRS, _ROUND | {"ftz", "sat", "relu"}),
    "addc": _form(1, 2, frozenset({"u32", "s32", "u64", "s64"}), "cc"),
    "subc": _form(1, 2, frozenset({"u32", "s32", "u64", "s64"}), "cc"),
    "madc": _form(1, 3, frozenset({"u32", "s32", "u64", "s64"}), "cc lo hi"),
    "div": _form(1, 2, INTEGER | {"f32", "f64"}, _ROUND | {"ftz", "approx", "full"}),
    "rem": _form(1, 2, INTEGER),
    "sad": _form(1, 3, INTEGER),
    "abs": _form(1, 1, SIGNED | FLOAT, "ftz"),
    "neg": _form(1, 1, SIGNED | FLOAT, "ftz"),
    "min": _form(1, (2, 3), INTEGER | FLOAT, "ftz NaN relu xorsign abs"),
    "max": _form(1, (2, 3), INTEGER | FLOAT, "ftz NaN relu xorsign abs"),
    "and": _form(1, 2, BITS | {"pred"}),
    "or": _form(1, 2, BITS | {"pred"}),
    "xor": _form(1, 2, BITS | {"pred"}),
    "not": _form(1, 1, BITS | {"pred"}),
    "cnot": _form(1, 1, BITS),
    "lop3": _form(1, 4, frozenset({"b32"})),
    "shl": _form(1, 2, BITS),
    "shr": _form(1, 2, BITS | INTEGER),
    "shf": _form(1, 3, frozenset({"b32"}), "l r wrap clamp"),
    "bfe": _form(1, 3, INTEGER - {"u16", "s16"}),
    "bfi": _form(1, 4, frozenset({"b32", "b64"})),
    "bmsk": _form(1, 2, frozenset({"b32"}), "clamp wrap"),
    "szext": _form(1, 2, frozenset({"u32", "s32"}), "clamp wrap"),
    "mul24": _form(1, 2, frozenset({"u32", "s32"}), "lo hi"),
    "mad24": _form(1, 3, frozenset({"u32", "s32"}), "lo"),
    "dp4a": _form(1, 3, (frozenset({"u32", "s32"}), frozenset({"u32", "s32"}))),
    "bfind": _form(1, 1, INTEGER - {"u16", "s16"}, "shiftamt"),
    "brev": _form(1, 1, frozenset({"b32", "b64"})),
    "popc": _form(1, 1, frozenset({"b32", "b64"})),
    "clz": _form(1, 1, frozenset({"b32", "b64"})),
    "prmt": _form(1, 3, frozenset({"b32"}), "f4e b4e rc8 ecl ecr rc16"),
    "set": _form(
        1, (2, 3), (frozenset({"u32", "s32", "f32"}), _SCALAR | BITS), COMPARISONS | {"and", "or", "xor", "ftz"}
    ),
    "setp": _form(2, (2, 3), _SCALAR | BITS | PACKED, COMPARISONS | {"and", "or", "xor", "ftz"}),
    "selp": _form(1, 3, INTEGER | BITS | {"f32", "f64"}),
    "slct": _form(1, 3, (INTEGER | BITS | {"f32", "f64"}, frozenset({"s32", "f32"})), "ftz"),
    "mov": _form(1, 1, INTEGER | BITS | {"b8", "u8", "s8", "f32", "f64", "pred"}),
    "pack": _form(1, (2, 8), BITS),
    "unpack": _form(8, 1, BITS),
    "cvta": _form(1, 1, frozenset({"u32", "u64"}), "to global shared local const"),
    "cvt": _form(
        1,
        (1, 2),
        (_SCALAR | HALF | {"tf32"}, _SCALAR | HALF),
        _ROUND | {"rna", "rni", "rzi", "rmi", "rpi", "ftz", "sat", "relu"},
    ),
    "ldu": _form(8, 1, _ANY, SPACES),
    "ld": _form(8, 1, _ANY, _MEMORY | _CACHE | SPACES),
    "ld_param": _form(8, 1, _ANY, _MEMORY | _CACHE | SPACES),
    "st": _form(0, (2, 9), _ANY, _MEMORY | _CACHE | SPACES),
    "atom": _form(1, (2, 3), _ATOMIC_TYPES, _ORDER | ATOMIC_OPERATIONS | SPACES | {"noftz", "shared::cluster"}),
    "red": _form(0, (2, 9), _ATOMIC_TYPES, _ORDER | ATOMIC_OPERATIONS | SPACES | {"noftz", "shared::cluster"}),
    "cp": _form(0, (0, 4), (), "async ca cg shared global commit_group wait_group wait_all"),
    "cp_mbarrier": _form(0, 1, frozenset({"b64"}), "async mbarrier arrive noinc shared"),
    "prefetch": _form(0, 1, (), "global local L1 L2"),
    "prefetchu": _form(0, 1, (), "L1"),
    "applypriority": _form(0, 2, (), "global"),
    "createpolicy": _form(1, (0, 4), frozenset({"b64"}), "fractional range global cvt"),
    "isspacep": _form(1, 1, (), "global shared local const"),
    "mapa": _form(1, 2, frozenset({"u32", "u64"}), "shared::cluster"),
    "getctarank": _form(1, 1, frozenset({"u32", "u64"}), "shared::cluster"),
    "mbarrier": _form(
        1,
        (1, 3),
        frozenset({"b64"}),
        _ORDER
        | {
            "init",
            "inval",
            "arrive",
            "arrive_drop",
            "expect_tx",
            "complete_tx",
            "test_wait",
            "try_wait",
            "parity",
            "pending_count",
            "shared",
            "noComplete",
        },
    ),
    "setmaxnreg": _form(0, 1, frozenset({"u32"}), "inc dec sync aligned"),
    "griddepcontrol": _form(0, 0, (), "launch_dependents wait"),
    "pmevent": _form(0, 1, (), "mask"),
    "cluster_arrive": _form(0, 0, (), "cluster arrive release relaxed aligned"),
    "cluster_wait": _form(0, 0, (), "cluster wait acquire aligned"),
    "elect": _form(2, 1, (), "sync"),
    "match": _form(2, 2, frozenset({"b32", "b64"}), "any all sync"),
    "shfl": _form(2, (3, 4), frozenset({"b32"}), "sync up down bfly idx"),
    "vote": _form(1, (1, 2), frozenset({"pred", "b32"}), "sync all any uni ballot"),
    "redux": _form(1, 2, frozenset({"u32", "s32", "b32", "f32"}), "sync add min max and or xor abs NaN"),
    "activemask": _form(1, 0, frozenset({"b32"})),
    "mma": _form(4, (3, 12), (), "sync aligned row col satfinite"),
    "ldmatrix": _form(4, 1, frozenset({"b16"}), "sync aligned m8n8 x1 x2 x4 trans shared"),
    "stmatrix": _form(0, (2, 5), frozenset({"b16"}), "sync aligned m8n8 x1 x2 x4 trans shared"),
    "movmatrix": _form(1, 1, frozenset({"b16"}), "sync aligned m8n8 trans"),
    "ex2": _form(1, 1, FLOAT - {"f64"}, "approx ftz"),
    "lg2": _form(1, 1, frozenset({"f32"}), "approx ftz"),
    "sin": _form(1, 1, frozenset({"f32"}), "approx ftz"),
    "cos": _form(1, 1, frozenset({"f32"}), "approx ftz"),
    "tanh": _form(1, 1, FLOAT - {"f64"}, "approx"),
    "rcp": _form(1, 1, frozenset({"f32", "f64"}), _ROUND | {"approx", "ftz"}),
    "sqrt": _form(1, 1, frozenset({"f32", "f64"}), _ROUND | {"approx", "ftz"}),
    "rsqrt": _form(1, 1, frozenset({"f32", "f64"}), "approx ftz"),
    "copysign": _form(1, 2, frozenset({"f32", "f64"})),
    "testp": _form(1, 1, frozenset({"f32", "f64"}), "finite infinite number notanumber normal subnormal"),
    "bar": _form(1, (1, 3), frozenset({"u32", "pred"}), "sync warp cta red popc and or"),
    "barrier": _form(1, (1, 3), frozenset({"u32", "pred"}), "sync cta aligned red popc and or"),
    "bar_arrive": _form(0, 2, (), "arrive cta aligned"),
    "barrier_result": _form(1, 0, frozenset({"u32", "pred"}), "cta aligned red popc and or"),
    "membar": _form(0, 0, (), _ORDER | {"gl"}),
    "fence": _form(0, (0, 2), (), _ORDER | {"proxy", "alias", "async", "global", "shared", "mbarrier_init"}),
    "nanosleep": _form(0, 1, frozenset({"u32"})),
    "bra": _form(0, 1, (), "uni"),
    "brx": _form(0, 2, (), "idx uni"),
    "ret": _form(0, 0, (), "uni"),
    "exit": _form(0, 0),
    "trap": _form(0, 0),
    "implicit": _form(1, 0),
}
"""Every opcode; ``pack``, ``unpack``, ``ld_param`` and ``implicit`` are explained in :class:`ir.Instruction`."""

CONTROL = frozenset({"bra", "brx", "ret", "exit", "trap", "barrier", "call"})
"""Opcodes that end a basic block (and ``bar.sync``)."""


_CONTROL = frozenset({
    "bra", "brx", "ret", "exit", "trap", "nanosleep", "prefetch", "prefetchu", "applypriority", "setmaxnreg",
    "griddepcontrol", "pmevent",
})  # fmt: skip


_MOVES = frozenset({
    "ld_param", "mov", "pack", "unpack", "cvta", "selp", "slct", "implicit", "createpolicy", "mapa", "getctarank",
})  # fmt: skip


@dataclass(frozen=True)
class Mnemonic:
    """A mnemonic taken apart."""

    op: str
    modifiers: tuple[str, ...]
    types: tuple[str, ...]
    vector: int


def split_mnemonic(text: str) -> Mnemonic:
    """Take a mnemonic apart; cache hints are dropped, ``shared::cta`` is ``shared``."""
    head, *rest = text.split(".")
    modifiers: list[str] = []
    types: list[str] = []
    vector = 1
    for part in rest:
        if part in TYPE_BYTES:
            types.append(part)
        elif part in ("v2", "v4", "v8"):
            vector = int(part[1])
        elif part == "shared::cta":
            modifiers.append("shared")
        elif part == "shared::cluster" and head in _CLUSTER_WIDE:
            # The address tells the block; the mnemonic keeps the word for the engine.
            modifiers.append("shared")
        elif not part.startswith(_PROMOTED):
            modifiers.append(part)
    return Mnemonic(head, tuple(modifiers), tuple(types), vector)


def mistake(op: str, modifiers: tuple[str, ...], types: tuple[str, ...]) -> str:
    """Why the opcode cannot have these modifiers and types, or ""."""
    form = FORMS.get(op)
    if form is None:
        return f"unknown instruction {op!r}"
    if op == "mma":
        return _matrix_mistake(modifiers, types)
    for modifier in modifiers:
        if modifier not in form.modifiers:
            return f"unknown modifier {'.' + modifier!r}"
    if op in ("bar", "barrier"):
        return _barrier_mistake(modifiers, types)
    if len(types) != len(form.types):
        return f"needs {len(form.types)} types, has {len(types)}"
    for name, allowed in zip(types, form.types, strict=True):
        if name not in allowed:
            return f"type {name!r} is not supported here"
    if op in ("cvt",) and len(types) == 2 and "tf32" in types and types[1] != "f32":
        return "tf32 converts from f32 only"
    if op in ("atom", "red") and not ATOMIC_OPERATIONS.intersection(modifiers):
        return "names no operation"
    if op in ("set", "setp") and not COMPARISONS.intersection(modifiers):
        return "names no comparison"
    return ""


def _matrix_mistake(modifiers: tuple[str, ...], types: tuple[str, ...]) -> str:
    shapes = _MATRICES.get(types, ())
    if not shapes:
        return f"types {'.'.join(types)} are not supported"
    for modifier in modifiers:
        if modifier not in FORMS["mma"].modifiers and modifier not in shapes:
            return f"{'.' + modifier!r} is not supported for these types"
    if not set(shapes) & set(modifiers) or "row" not in modifiers or "col" not in modifiers:
        return "needs a shape, .row and .col"
    return ""


def _barrier_mistake(modifiers: tuple[str, ...], types: tuple[str, ...]) -> str:
    if "red" not in modifiers:
        return f"needs no type, has {types[0]!r}" if types else "" if "sync" in modifiers else "is no barrier"
    operation = next((m for m in modifiers if m in ("popc", "and", "or")), "")
    if not operation:
        return "names no operation"
    wanted = ("u32",) if operation == "popc" else ("pred",)
    return "" if types == wanted else f"needs type {wanted[0]!r}"


_STATEFUL = frozenset({"arrive", "arrive_drop", "test_wait", "try_wait", "pending_count"})


def has_result(op: str, modifiers: tuple[str, ...]) -> bool:
    """Whether the first operand is a destination."""
    if op in ("bar", "barrier"):
        return "red" in modifiers
    if op == "mbarrier":
        return not {"init", "inval", "complete_tx"} & set(modifiers) and (
            "expect_tx" not in modifiers or "arrive" in modifiers
        )
    return FORMS[op].outputs > 0


def classify(op: str, modifiers: tuple[str, ...], types: tuple[str, ...]) -> str:
    """Class of an instruction for counting, see ``docs/counters.md``."""
    if op in ("ld", "ldu", "st", "atom", "red", "cp", "cp_mbarrier", "mbarrier"):
        if op in ("mbarrier", "cp_mbarrier"):
            return "atomic"
        if op in ("atom", "red"):
            return "atomic"
        if op == "cp":
            return "load_global" if "async" in modifiers and "shared" in modifiers else "control"
        verb = "load" if op != "st" else "store"
        space = next((m for m in modifiers if m in SPACES), "global")
        return f"{verb}_{'global' if space == 'const' else space}"
    if op in (
        "ld_param",
        "mov",
        "pack",
        "unpack",
        "cvta",
        "selp",
        "slct",
        "implicit",
        "createpolicy",
        "mapa",
        "getctarank",
    ):
        return "move"
    if op in ("shfl", "vote", "redux", "activemask", "elect", "match"):
        return "shuffle"
    if op in ("ldmatrix", "stmatrix"):
        return "load_shared" if op == "ldmatrix" else "store_shared"
    if op in ("mma", "movmatrix"):
        return "matrix" if op == "mma" else "shuffle"
    if op in ("bar", "barrier", "bar_arrive", "cluster_arrive", "cluster_wait", "membar", "fence"):
        return "fence" if op in ("membar", "fence") else "barrier"
    if op in _CONTROL:
        return "control"
    if op in ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt"):
        return "special"
    if op == "cvt":
        return "convert"
    return "float" if types and types[-1] in FLOAT else "integer"
