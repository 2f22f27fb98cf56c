"""Tutti's tensors and operators from Python by ctypes, and random layouts of them; without PyTorch, which only rank 0 loads.

With OPS_MEMORY=cuda the tensors are in CUDA memory, or in that of the stand-in that TUTTI_CUDA_MODULE names."""
import ctypes
import os
from math import prod

import numpy as np

TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16", "bfloat16", "float32",
         "float64", "float8_e4m3", "float8_e5m2"]  # in the order of tutti_type
REDUCTIONS = ["sum", "prod", "min", "max", "avg"]  # of tutti_reduction
BROADCAST, SPLIT, PARTIAL = range(3)
HOST, CUDA, ERR_ARGUMENT = 1, 2, -1
MEMORY = CUDA if os.environ.get("OPS_MEMORY") == "cuda" else HOST
pointer = ctypes.c_void_p
double = ctypes.c_double


class Sbp(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("dim", ctypes.c_int), ("reduction", ctypes.c_int)]

    def key(self):
        return (self.kind, self.dim if self.kind == SPLIT else 0, self.reduction if self.kind == PARTIAL else 0)

    def __repr__(self):
        return ("B", f"S{self.dim}", f"P({REDUCTIONS[self.reduction]})")[self.kind]


class Layout(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("placement", pointer), ("sbp", ctypes.POINTER(Sbp)), ("type", ctypes.c_int),
                ("ndims", ctypes.c_int), ("shape", ctypes.POINTER(ctypes.c_int64)), ("rule", ctypes.c_int),
                ("cuts", ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))), ("name", ctypes.c_char_p)]


class Local(ctypes.Structure):
    _fields_ = [("data", pointer), ("ndims", ctypes.c_int), ("shape", ctypes.c_int64 * 8), ("first", ctypes.c_int64 * 8),
                ("count", ctypes.c_size_t)]


class Options(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("sbp", ctypes.POINTER(Sbp)), ("name", ctypes.c_char_p), ("options", pointer)]


class Refused(Exception):
    """An error of the library: its status, and its text."""

    def __init__(self, status, text):
        super().__init__(f"status {status}: {text}")
        self.status = status


tutti = ops = world = None  # the libraries, and the communicator of all ranks


def load(tutti_path, ops_path):
    global tutti, ops, world
    tutti, ops, world = ctypes.CDLL(tutti_path, mode=ctypes.RTLD_GLOBAL), ctypes.CDLL(ops_path), pointer()
    tutti.tutti_last_error.restype = tutti.tutti_type_name.restype = ops.tutti_op_explain.restype = ctypes.c_char_p
    tutti.tutti_tensor_layout.restype = ctypes.POINTER(Layout)
    tutti.tutti_tensor_destroy.restype = tutti.tutti_placement_destroy.restype = None
    for number, name in enumerate(TYPES):
        assert tutti.tutti_type_name(number).decode() == name
    must(tutti.tutti_comm_create_world(ctypes.byref(world)))
    if MEMORY == CUDA:
        must(tutti.tutti_device_use(-1))


def must(status):
    if status != 0:
        raise Refused(status, tutti.tutti_last_error().decode())


def ints(values, kind=ctypes.c_int):
    return (kind * max(len(values), 1))(*values)


# Numbers, as the library and numpy hold them: bfloat16 is a uint16 there.

def to_memory(array, kind):
    if kind == "bfloat16":
        return (np.ascontiguousarray(array, "float32").view("uint32") >> 16).astype("uint16")  # of what it represents exactly
    return np.ascontiguousarray(array).astype(kind)


def from_memory(array, kind):
    if kind == "bfloat16":
        return (array.astype("uint32") << 16).view("float32")
    return array


def memory_kind(kind):
    return "uint16" if kind == "bfloat16" else kind


# Placements and layouts.

class Place:
    """The same on all ranks: a list of ranks with rank 0, as an array of one to three axes."""

    def __init__(self, draw, size):
        count = draw.choice([n for n in (1, 2, 3, 4, 4, 4) if n <= size])
        self.ranks = [0] + draw.sample(range(1, size), count - 1)
        draw.shuffle(self.ranks)
        self.axes = draw.choice([[count], [count], [1, count], [count, 1]] + ([[2, 2]] * 4 + [[2, 1, 2]]) * (count == 4))
        self.handle = pointer()
        must(tutti.tutti_placement_create(world, MEMORY, ints(self.ranks), ints(self.axes), len(self.axes),
                                          ctypes.byref(self.handle)))

    def coordinates(self):
        return [tutti.tutti_placement_coordinate(self.handle, axis) for axis in range(len(self.axes))]

    def is_member(self):
        return tutti.tutti_placement_coordinate(self.handle, -1) >= 0


def random_sbp(draw, place, ndims, reduction=None):
    """PARTIAL axes have `reduction`; None: there are no such axes."""
    def one():
        choice = draw.random()
        if choice < 0.45 and ndims > 0:
            return Sbp(SPLIT, draw.randrange(ndims), 0)
        if choice < 0.7 and reduction is not None:
            return Sbp(PARTIAL, 0, REDUCTIONS.index(reduction))
        return Sbp(BROADCAST, 0, 0)
    sbp = [one() for _ in place.axes]
    if reduction not in (None, "sum") and sum(s.kind == PARTIAL for s in sbp) > 1:
        sbp[0] = Sbp(BROADCAST, 0, 0)  # another test covers their order
    return sbp


def parts_of(place, sbp, dim):
    return prod(size for size, s in zip(place.axes, sbp) if s.kind == SPLIT and s.dim == dim)


def random_layout(draw, place, shape, kind, reduction, name):
    sbp = random_sbp(draw, place, len(shape), reduction)
    layout = Layout(ctypes.sizeof(Layout), place.handle, (Sbp * len(sbp))(*sbp), TYPES.index(kind), len(shape),
                    ints(shape, ctypes.c_int64), draw.choice([0, 0, 1]), None, name.encode())
    cuts = (ctypes.POINTER(ctypes.c_int64) * 8)()
    for dim, extent in enumerate(shape):
        parts = parts_of(place, sbp, dim)
        if parts > 1 and draw.random() < 0.3:
            cuts[dim] = ints([0] + sorted(draw.randint(0, extent) for _ in range(parts - 1)) + [extent], ctypes.c_int64)
            layout.cuts = cuts
    return layout


def read_sbp(layout, place):
    return [layout.sbp[axis] for axis in range(len(place.axes))]


def read_cuts(layout, place):
    sbp = read_sbp(layout, place)
    counts = {dim: parts_of(place, sbp, dim) for dim in range(layout.ndims)}
    return {dim: [layout.cuts[dim][part] for part in range(count + 1)] for dim, count in counts.items() if count > 1}


def meaning(sbp, place):
    """The entries of sbp on axes of more than one rank."""
    return [s.key() for s, size in zip(sbp, place.axes) if size > 1]


# Tensors.

def create(layout):
    tensor = pointer()
    must(tutti.tutti_tensor_create(ctypes.byref(layout), ctypes.byref(tensor)))
    return tensor


def layout_of(tensor):
    return tutti.tutti_tensor_layout(tensor).contents


def shape_of(tensor):
    layout = layout_of(tensor)
    return tuple(layout.shape[dim] for dim in range(layout.ndims))


def shard(tensor):
    """The local part, and where it begins; None if there is none. In host memory it is not a copy: writes change the
    tensor."""
    local = Local()
    must(tutti.tutti_tensor_local(tensor, ctypes.byref(local)))
    if not local.data:
        return None, None
    kind = memory_kind(TYPES[layout_of(tensor).type])
    if MEMORY == CUDA:
        array = np.empty(local.shape[:local.ndims], kind)
        must(tutti.tutti_device_copy(pointer(array.ctypes.data), pointer(local.data), ctypes.c_size_t(array.nbytes), None))
        return array, local.first[:local.ndims]
    memory = (ctypes.c_char * (local.count * np.dtype(kind).itemsize)).from_address(local.data)
    return np.frombuffer(memory, kind).reshape(local.shape[:local.ndims]), local.first[:local.ndims]


def put_back(tensor, array):
    """Writes a changed result of shard() back."""
    local = Local()
    must(tutti.tutti_tensor_local(tensor, ctypes.byref(local)))
    if MEMORY == CUDA:
        array = np.ascontiguousarray(array)
        must(tutti.tutti_device_copy(pointer(local.data), pointer(array.ctypes.data), ctypes.c_size_t(array.nbytes), None))


def terms(rng, value, count, reduction, kind):
    """Values of `count` ranks whose reduction is `value`, exactly."""
    if count == 1:
        return [value]
    if reduction in ("min", "max"):
        holder = rng.integers(0, count, value.shape)
        away = rng.integers(0, 3, (count,) + value.shape).astype(value.dtype)
        if value.dtype == "uint8":
            away = np.minimum(away, value)
        return [np.where(holder == term, value, value - away[term] if reduction == "max" else value + away[term])
                for term in range(count)]
    others = [rng.integers(-4, 5, value.shape).astype(value.dtype) for _ in range(count - 1)]
    with np.errstate(over="ignore"):  # integers are modulo
        last = (value * count if reduction == "avg" else value) - sum(others)
    return others + [last.astype(value.dtype)]


def fill(rng, tensor, value, place):
    """`value` is the whole tensor, equal on all ranks, as are rng's numbers."""
    layout, kind = layout_of(tensor), TYPES[layout_of(tensor).type]
    sbp, at = read_sbp(layout, place), place.coordinates()
    partial = [axis for axis, s in enumerate(sbp) if s.kind == PARTIAL]
    reduction = REDUCTIONS[sbp[partial[0]].reduction] if partial else "sum"
    number = 0
    for axis in partial:
        number = number * place.axes[axis] + at[axis]
    parts = terms(rng, value, prod(place.axes[axis] for axis in partial), reduction, kind)
    own, first = shard(tensor)
    if own is not None:
        box = tuple(slice(begin, begin + extent) for begin, extent in zip(first, own.shape))
        own[...] = to_memory(parts[number][box], kind).reshape(own.shape)
        put_back(tensor, own)


def whole(tensor, placement=None):
    """Collective over the tensor's placement and this one: the whole tensor, on the ranks of this one (None: of the
    tensor's)."""
    copy = pointer()
    must(tutti.tutti_tensor_to_global(tensor, placement, None, None, ctypes.byref(copy)))
    shape, kind = shape_of(copy), TYPES[layout_of(copy).type]
    seen, _ = shard(copy)
    value = np.zeros(shape, "float32" if kind == "bfloat16" else kind) if seen is None else from_memory(seen.copy(), kind)
    tutti.tutti_tensor_destroy(copy)
    return value
