"""Random calls of operators, and PyTorch's results: elementwise, moving data, matrix products, tables.

Each function makes a Case from a source of choices (random.Random) and one of numbers (numpy's Generator), equal on all ranks.
"""
import ctypes
from dataclasses import dataclass, field
from typing import Callable, Optional

import numpy as np

import ops_api as api
from ops_api import double, ints, pointer

EXTENTS = [0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 11]
LONG = [31, 64, 130, 257, 1100]
FLOATS, SHORTS, INTEGERS = ["float32"] * 3 + ["float64"] * 2, ["float16", "bfloat16"], ["int8", "uint8", "int16", "int32", "int64"]
NUMBERS = FLOATS * 3 + SHORTS * 2 + INTEGERS


@dataclass
class Input:
    name: str
    value: np.ndarray  # whole; a bfloat16 as float32
    kind: str
    has_gradient: bool = True
    is_finite: bool = True  # else it is never partial


@dataclass
class Case:
    inputs: list
    ndims: int                 # of the result
    kind: str                  # of the result
    forward: Callable          # (tensors, options, address of the result) -> status
    reference: Callable        # (torch, tensors of torch) -> result
    backward: Optional[Callable] = None  # (tensors, y, dy, addresses of the gradients or None) -> status
    says: str = ""             # arguments other than tensors
    keep: list = field(default_factory=list)  # handles of further results, to be destroyed


def numbers(rng, shape, kind):
    """Small sums and differences of them are exact in the kind."""
    shape = tuple(shape)
    if kind in SHORTS:
        return (rng.integers(-8, 9, shape) / 4).astype("float16" if kind == "float16" else "float32")
    if kind in ("float32", "float64"):
        if rng.random() < 0.4:
            return rng.integers(-2, 3, shape).astype(kind)  # many are equal
        return (np.round(rng.normal(size=shape) * 64) / 64).astype(kind)
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(kind)
    return rng.integers(0 if kind.startswith("u") else -5, 6, shape).astype(kind)


def shapes(draw, least=0, most=4):
    """Mostly small; rarely with many dimensions, or with one that kernels take in blocks."""
    kind = draw.random()
    if most == 4 and kind < 0.03:
        return [draw.choice([1, 2, 2]) for _ in range(draw.randint(5, 8))]
    if most > 1 and kind > 0.9:
        shape = [draw.choice([1, 2, 3, 5]) for _ in range(draw.randint(0, 2))]
        return shape[:1] + [draw.choice(LONG)] + shape[1:]
    return [draw.choice(EXTENTS) for _ in range(draw.randint(least, most))]


def given(rng, name, shape, kind, has_gradient=True):
    return Input(name, numbers(rng, shape, kind), kind, has_gradient)


# Elementwise.

def narrowed(draw, shape):
    """A shape that broadcasts to this one."""
    shape = [1 if draw.random() < 0.25 else extent for extent in shape]
    return shape[draw.randint(0, len(shape)):] if draw.random() < 0.3 else shape


def binary(name, function):
    def make(draw, rng):
        wide, kind = shapes(draw), draw.choice(NUMBERS)
        a, b = given(rng, "a", narrowed(draw, wide), kind), given(rng, "b", narrowed(draw, wide), kind)
        ndims = max(a.value.ndim, b.value.ndim)
        forward, backward = getattr(api.ops, f"tutti_op_{name}"), getattr(api.ops, f"tutti_op_{name}_backward")
        return Case([a, b], ndims, kind, lambda t, options, y: forward(*t, options, y), lambda torch, x: function(*x),
                    lambda t, y, dy, out: backward(*t, dy, *out))
    return make


def unary(draw, rng, kinds, forward, backward, reference, says=""):
    shape, kind = shapes(draw), draw.choice(kinds)
    return Case([given(rng, "x", shape, kind)], len(shape), kind, lambda t, options, y: forward(t[0], options, y), reference,
                lambda t, y, dy, out: backward(t[0], y, dy, out[0]), says)


def scale(draw, rng):
    factor = draw.choice([2, -1, 3, 0.5, -0.75, 37.5])
    def reference(torch, x):
        if x[0].is_floating_point():
            return x[0] * factor
        if factor == int(factor):
            return x[0] * int(factor)
        ends = torch.iinfo(x[0].dtype)
        return torch.round(x[0].double() * factor).clamp(ends.min, ends.max).to(x[0].dtype)
    return unary(draw, rng, NUMBERS, lambda x, options, y: api.ops.tutti_op_scale(x, double(factor), options, y),
                 lambda x, y, dy, dx: api.ops.tutti_op_scale_backward(x, double(factor), dy, dx), reference, f"factor {factor}")


def add_number(draw, rng):
    number = draw.choice([1, -2, 7])
    case = unary(draw, rng, NUMBERS, lambda x, options, y: api.ops.tutti_op_add_number(x, double(number), options, y), None,
                 lambda torch, x: x[0] + number, f"number {number}")
    case.backward = None
    return case


def relu(draw, rng):
    return unary(draw, rng, NUMBERS, api.ops.tutti_op_relu, api.ops.tutti_op_relu_backward, lambda torch, x: torch.relu(x[0]))


def exp(draw, rng):
    return unary(draw, rng, FLOATS + SHORTS, api.ops.tutti_op_exp, api.ops.tutti_op_exp_backward, lambda torch, x: torch.exp(x[0]))


def gelu(draw, rng):
    kind = draw.randrange(2)
    case = unary(draw, rng, FLOATS + SHORTS, lambda x, options, y: api.ops.tutti_op_gelu(x, kind, options, y),
                 lambda x, y, dy, dx: api.ops.tutti_op_gelu_backward(x, kind, dy, dx),
                 lambda torch, x: torch.nn.functional.gelu(x[0], approximate=("none", "tanh")[kind]), f"kind {kind}")
    if draw.random() < 0.3:
        case.inputs[0].value *= 8  # where it is 0 or x
    return case


def cast(draw, rng):
    every = FLOATS + SHORTS + INTEGERS + ["bool"]
    shape, kind, to = shapes(draw), draw.choice(every), draw.choice(every)
    def backward(t, y, dy, out):
        return api.ops.tutti_op_cast_backward(t[0], dy, out[0])
    def reference(torch, x):
        """PyTorch does not define float to integer conversions beyond the range, nor of NaN."""
        if is_float:
            return x[0] * 1
        if kind in FLOATS + SHORTS and to in INTEGERS:
            ends = np.iinfo(to)
            low, high = (torch.tensor(end, dtype=x[0].dtype) for end in (ends.min, ends.max))
            inside = (x[0] > low) & (x[0] < high)
            cut = torch.where(inside, x[0], 0).nan_to_num(0).to(getattr(torch, to))
            return torch.where(x[0] <= low, ends.min, torch.where(x[0] >= high, ends.max, cut)).to(getattr(torch, to))
        return x[0].to(getattr(torch, to))
    is_float = kind in FLOATS + SHORTS and to in FLOATS + SHORTS
    x = given(rng, "x", shape, kind, is_float)
    if kind in FLOATS and not is_float and draw.random() < 0.4:
        x.is_finite = False
        strange = np.array([np.nan, np.inf, -np.inf, 1e10, -1e10, 1e30, -200.5, 300.7, 127.9, -0.9], kind)
        x.value = np.where(rng.random(x.value.shape) < 0.5, strange[rng.integers(0, len(strange), x.value.shape)], x.value)
    return Case([x], len(shape), to, lambda t, options, y: api.ops.tutti_op_cast(t[0], api.TYPES.index(to), options, y), reference,
                backward if is_float else None, f"to {to}")


# Moving data.

def transpose(draw, rng):
    shape = shapes(draw)
    order = draw.sample(range(len(shape)), len(shape))
    return unary_of_shape(draw, rng, shape, len(shape),
                          lambda x, options, y: api.ops.tutti_op_transpose(x, ints(order), options, y),
                          lambda x, y, dy, dx: api.ops.tutti_op_transpose_backward(x, ints(order), dy, dx),
                          lambda torch, x: x[0].permute(order), f"order {order}")


def unary_of_shape(draw, rng, shape, ndims, forward, backward, reference, says, kinds=NUMBERS + ["bool"]):
    kind = draw.choice(kinds)
    return Case([given(rng, "x", shape, kind)], ndims, kind, lambda t, options, y: forward(t[0], options, y), reference,
                lambda t, y, dy, out: backward(t[0], y, dy, out[0]), says)


def regrouped(draw, shape):
    """Another shape with the same number of elements, near this one: neighbours joined, extents divided, ones
    inserted."""
    shape = list(shape)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(shape) + 1)
        if draw.random() < 0.5 and at + 1 < len(shape):
            shape[at:at + 2] = [shape[at] * shape[at + 1]]
        elif at < len(shape) and len(shape) < 6:
            divisor = draw.choice([d for d in range(1, shape[at] + 1) if shape[at] % d == 0] or [1])
            shape[at:at + 1] = draw.choice([[divisor, shape[at] // divisor], [shape[at] // divisor, divisor]])
    return shape


def reshape(draw, rng):
    extents = [0, 1, 2, 3, 4, 5, 6, 8, 12] if draw.random() < 0.3 else [2, 3, 4, 6, 8, 12]
    shape = [draw.choice(extents) for _ in range(draw.randint(0, 3))]
    to = regrouped(draw, shape)
    asked = list(to)
    if asked and 0 not in asked and draw.random() < 0.3:
        asked[draw.randrange(len(asked))] = -1
    return unary_of_shape(draw, rng, shape, len(to),
                          lambda x, options, y: api.ops.tutti_op_reshape(x, len(asked), ints(asked, ctypes.c_int64), options, y),
                          lambda x, y, dy, dx: api.ops.tutti_op_reshape_backward(x, dy, dx), lambda torch, x: x[0].reshape(to),
                          f"shape {asked}")


def slice_(draw, rng):
    shape = shapes(draw)
    bounds = [sorted([draw.randint(0, extent), draw.randint(0, extent)]) for extent in shape]
    first, end = (ints([b[i] for b in bounds], ctypes.c_int64) for i in range(2))
    return unary_of_shape(draw, rng, shape, len(shape), lambda x, options, y: api.ops.tutti_op_slice(x, first, end, options, y),
                          lambda x, y, dy, dx: api.ops.tutti_op_slice_backward(x, first, end, dy, dx),
                          lambda torch, x: x[0][tuple(slice(*b) for b in bounds)], f"bounds {bounds}")


def concat(draw, rng):
    shape, kind = shapes(draw, 1), draw.choice(NUMBERS + ["bool"])
    dim, count = draw.randrange(len(shape)), draw.randint(1, 4)
    inputs = [given(rng, f"x{i}", shape[:dim] + [draw.choice(EXTENTS)] + shape[dim + 1:], kind) for i in range(count)]
    def backward(t, y, dy, out):
        gradients = (pointer * count)()
        status = api.ops.tutti_op_concat_backward((pointer * count)(*t), count, dim, dy, gradients)
        for made, address in zip(gradients, out):
            if address is not None:
                address._obj.value = made
            else:
                api.tutti.tutti_tensor_destroy(pointer(made))
        return status
    return Case(inputs, len(shape), kind,
                lambda t, options, y: api.ops.tutti_op_concat((pointer * count)(*t), count, dim, options, y),
                lambda torch, x: torch.cat(x, dim), backward, f"dim {dim}")


# Matrix products.

class Matmul(ctypes.Structure):
    _fields_ = [("transpose_a", ctypes.c_bool), ("transpose_b", ctypes.c_bool)]


def matmul(draw, rng):
    m, n, k, kind = draw.choice(EXTENTS), draw.choice(EXTENTS), draw.choice(EXTENTS + [67]), draw.choice(FLOATS)
    batch = shapes(draw, 0, 2)
    turned = [draw.random() < 0.5, draw.random() < 0.5]
    a = given(rng, "a", narrowed(draw, batch) + ([k, m] if turned[0] else [m, k]), kind)
    b = given(rng, "b", narrowed(draw, batch) + ([n, k] if turned[1] else [k, n]), kind)
    how = Matmul(*turned)
    address = ctypes.byref(how) if any(turned) or draw.random() < 0.5 else None
    return Case([a, b], max(a.value.ndim, b.value.ndim), kind,
                lambda t, options, y: api.ops.tutti_op_matmul(*t, address, options, y),
                lambda torch, x: torch.matmul(*(v.transpose(-1, -2) if turn else v for v, turn in zip(x, turned))),
                lambda t, y, dy, out: api.ops.tutti_op_matmul_backward(*t, address, dy, *out), f"transposed {turned}")


def dense(draw, rng):
    rows, inputs, outputs = (draw.choice(EXTENTS) for _ in range(3))
    kind, has_bias = draw.choice(FLOATS), draw.random() < 0.6
    leading = [rows] if draw.random() < 0.7 else shapes(draw, 0, 2)
    tensors = [given(rng, "x", leading + [inputs], kind), given(rng, "weight", [inputs, outputs], kind)]
    tensors += [given(rng, "bias", [outputs], kind)] * has_bias
    def with_bias(values):
        return list(values) + [None] * (3 - len(values))
    return Case(tensors, len(leading) + 1, kind, lambda t, options, y: api.ops.tutti_op_dense(*with_bias(t), options, y),
                lambda torch, x: x[0] @ x[1] + (x[2] if has_bias else 0),
                lambda t, y, dy, out: api.ops.tutti_op_dense_backward(*with_bias(t), dy, *with_bias(out)))


# Tables.

def embedding(draw, rng):
    rows, width, kind = draw.choice([1, 2, 5, 7, 11]), draw.choice(EXTENTS), draw.choice(FLOATS)
    shape = shapes(draw, 0, 3)
    index = Input("indices", rng.integers(-1, rows + 2, shape).astype(draw.choice(["int32", "int64"])), "", False)
    index.kind = str(index.value.dtype)
    def reference(torch, x):
        inside = (x[0] >= 0) & (x[0] < rows)
        found = torch.nn.functional.embedding(torch.where(inside, x[0], 0).long(), x[1])
        return torch.where(inside.unsqueeze(-1), found, 0)
    return Case([index, given(rng, "table", [rows, width], kind)], len(shape) + 1, kind,
                lambda t, options, y: api.ops.tutti_op_embedding(*t, options, y), reference,
                lambda t, y, dy, out: api.ops.tutti_op_embedding_backward(*t, dy, out[1]))


CASES = {"add": binary("add", lambda a, b: a + b), "sub": binary("sub", lambda a, b: a - b),
         "mul": binary("mul", lambda a, b: a * b), "scale": scale, "add_number": add_number, "relu": relu, "gelu": gelu, "exp": exp,
         "cast": cast, "transpose": transpose, "reshape": reshape, "slice": slice_, "concat": concat, "matmul": matmul,
         "dense": dense, "embedding": embedding}
