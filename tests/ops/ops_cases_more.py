"""Random calls of the other operators, as in ops_cases.py: images, reductions, losses, and results by global index."""
import ctypes

import numpy as np

import ops_api as api
from ops_api import double, pointer
from ops_cases import FLOATS, INTEGERS, LONG, NUMBERS, SHORTS, Case, Input, given, shapes, unary_of_shape

# Images.


class Windows(ctypes.Structure):
    _fields_ = [("kernel", ctypes.c_int * 2), ("stride", ctypes.c_int * 2), ("pad_top", ctypes.c_int), ("pad_bottom", ctypes.c_int),
                ("pad_left", ctypes.c_int), ("pad_right", ctypes.c_int), ("count_padding", ctypes.c_bool)]

    def says(self):
        return (f"kernel {list(self.kernel)} stride {list(self.stride)} padding {self.pad_top},{self.pad_bottom},{self.pad_left},"
                f"{self.pad_right}{' counted' * self.count_padding}")


def random_windows(draw, kernel, is_pool):
    """Pools: a padding that is equal on both sides, and at most half a kernel, as in PyTorch."""
    w = Windows((ctypes.c_int * 2)(*kernel), (ctypes.c_int * 2)(draw.choice([0, 1, 2, 3]), draw.choice([0, 1, 2])))
    pads = [draw.randint(0, kernel[i] // 2 if is_pool else 2) for i in (0, 0, 1, 1)]
    w.pad_top, w.pad_bottom, w.pad_left, w.pad_right = [pads[0], pads[0], pads[2], pads[2]] if is_pool else pads
    w.count_padding = draw.random() < 0.5
    return w


def image(draw, kernel):
    return [draw.choice([0, 1, 2, 3, 5]), kernel[0] + draw.choice([0, 1, 2, 4]), kernel[1] + draw.choice([0, 1, 3]),
            draw.choice([1, 2, 3, 5])]


def strides(w):
    return [stride or 1 for stride in w.stride]


def conv2d(draw, rng):
    kernel, filters = [draw.randint(1, 3), draw.randint(1, 3)], draw.choice([1, 2, 4, 5])
    kind, has_bias = draw.choice(FLOATS), draw.random() < 0.5
    w, shape = random_windows(draw, kernel, False), image(draw, kernel)
    inputs = [given(rng, "x", shape, kind), given(rng, "weight", kernel + [shape[3], filters], kind)]
    inputs += [given(rng, "bias", [filters], kind)] * has_bias
    address = ctypes.byref(w)
    def with_bias(values):
        return list(values) + [None] * (3 - len(values))
    def reference(torch, x):
        padded = torch.nn.functional.pad(x[0].permute(0, 3, 1, 2), (w.pad_left, w.pad_right, w.pad_top, w.pad_bottom))
        weight = x[1].permute(3, 2, 0, 1).contiguous()
        y = torch.nn.functional.conv2d(padded.contiguous(), weight, x[2] if has_bias else None, strides(w))
        return y.permute(0, 2, 3, 1)
    return Case(inputs, 4, kind, lambda t, options, y: api.ops.tutti_op_conv2d(*with_bias(t), address, options, y), reference,
                lambda t, y, dy, out: api.ops.tutti_op_conv2d_backward(*with_bias(t), address, dy, *with_bias(out)), w.says())


def pool(name, function):
    def make(draw, rng):
        kernel = [draw.randint(1, 3), draw.randint(1, 3)]
        w, shape = random_windows(draw, kernel, True), image(draw, kernel)
        forward, backward = getattr(api.ops, f"tutti_op_{name}"), getattr(api.ops, f"tutti_op_{name}_backward")
        address = ctypes.byref(w)
        def reference(torch, x):
            y = function(torch.nn.functional, x[0].permute(0, 3, 1, 2), list(w.kernel), strides(w), [w.pad_top, w.pad_left],
                         w.count_padding)
            return y.permute(0, 2, 3, 1)
        return unary_of_shape(draw, rng, shape, 4, lambda x, options, y: forward(x, address, options, y),
                              lambda x, y, dy, dx: backward(x, address, dy, dx), reference, w.says(), FLOATS)
    return make


max_pool2d = pool("max_pool2d", lambda F, x, kernel, stride, padding, counted: F.max_pool2d(x, kernel, stride, padding))
avg_pool2d = pool("avg_pool2d", lambda F, x, kernel, stride, padding, counted: F.avg_pool2d(x, kernel, stride, padding,
                                                                                             count_include_pad=counted))


def batch_norm(draw, rng):
    shape = draw.choice([[draw.choice([2, 3, 5, 7])], [draw.choice([1, 2, 3, 5]), 2, 3]]) + [draw.choice([1, 2, 3, 5])]
    kind, channels = draw.choice(FLOATS), shape[-1]
    inputs = [given(rng, "x", shape, kind), given(rng, "gamma", [channels], kind), given(rng, "beta", [channels], kind)]
    if draw.random() < 0.3:
        inputs[0].value += 32
    epsilon, case = double(1e-3), None
    def forward(t, options, y):
        statistics = pointer()
        status = api.ops.tutti_op_batch_norm(*t, epsilon, options, y, ctypes.byref(statistics))
        case.keep.append(statistics)
        return status
    def reference(torch, x):
        rows = x[0].reshape(-1, channels)
        return torch.nn.functional.batch_norm(rows, None, None, x[1], x[2], training=True, eps=1e-3).reshape(shape)
    case = Case(inputs, len(shape), kind, forward, reference,
                lambda t, y, dy, out: api.ops.tutti_op_batch_norm_backward(*t, case.keep[0], epsilon, dy, *out))
    return case


# Reductions and losses.

def reduce(draw, rng):
    reduction, shape = draw.choice(["sum", "avg", "min", "max"]), shapes(draw)
    dims, keep = [d for d in range(len(shape)) if draw.random() < 0.5], draw.random() < 0.5
    if reduction in ("min", "max"):
        shape = [extent or 2 for extent in shape]  # an empty set has no largest element
    mask, number = sum(1 << d for d in dims), api.REDUCTIONS.index(reduction)
    def reference(torch, x):
        if not dims:
            return x[0] * 1
        if x[0].is_floating_point():
            return getattr(torch, {"avg": "mean", "min": "amin", "max": "amax"}.get(reduction, "sum"))(x[0], dims, keepdim=keep)
        if reduction == "sum":
            return torch.sum(x[0], dims, keepdim=keep).to(x[0].dtype)
        return getattr(torch, "a" + reduction)(x[0], dims, keepdim=keep)
    case = unary_of_shape(
        draw, rng, shape, len(shape) - (0 if keep else len(dims)),
        lambda x, options, y: api.ops.tutti_op_reduce(x, number, mask, keep, options, y),
        lambda x, y, dy, dx: api.ops.tutti_op_reduce_backward(x, y, number, mask, keep, dy, dx), reference,
        f"{reduction} over {dims}{' kept' * keep}", FLOATS if reduction == "avg" else FLOATS * 2 + INTEGERS)
    if reduction in ("min", "max"):
        case.inputs[0].value = rng.integers(0, 4, shape).astype(case.inputs[0].value.dtype)  # many are equal
    return case


def softmax(draw, rng):
    shape = shapes(draw, 1)
    return unary_of_shape(draw, rng, shape, len(shape), api.ops.tutti_op_softmax, api.ops.tutti_op_softmax_backward,
                          lambda torch, x: torch.softmax(x[0], -1), "", FLOATS)


def softmax_cross_entropy(draw, rng):
    batch, classes, kind = draw.choice([0, 1, 2, 5, 7, 11]), draw.choice([1, 2, 3, 7, 11] + LONG), draw.choice(FLOATS)
    strays = draw.random() < 0.2
    values = rng.integers(-strays, classes + strays, batch).astype(draw.choice(["int32", "int64"]))
    labels = Input("labels", values, str(values.dtype), False)
    logits = given(rng, "logits", [batch, classes], kind)
    if draw.random() < 0.3:
        logits.value *= 256  # exponentials of these are not numbers
    def reference(torch, x):
        inside = (x[1] >= 0) & (x[1] < classes)
        losses = torch.nn.functional.cross_entropy(x[0], torch.where(inside, x[1], 0).long(), reduction="none")
        return losses * torch.where(inside, 1.0, float("nan"))
    return Case([logits, labels], 1, kind,
                lambda t, options, y: api.ops.tutti_op_softmax_cross_entropy(*t, options, y), reference,
                lambda t, y, dy, out: api.ops.tutti_op_softmax_cross_entropy_backward(*t, dy, out[0]))


# Results by global index: equal to those of a single rank, with the expected moments.

class Dropout(ctypes.Structure):
    _fields_ = [("rate", double), ("seed", ctypes.c_uint64), ("stream", ctypes.c_uint64)]


class Random(ctypes.Structure):
    _fields_ = [("distribution", ctypes.c_int), ("a", double), ("b", double), ("seed", ctypes.c_uint64),
                ("stream", ctypes.c_uint64)]


def alone(shape, kind, call, value=None):
    """The result of call(input, address of the result) on a placement of rank 0 alone; the input is a layout or a
    tensor."""
    place, y = pointer(), pointer()
    api.must(api.tutti.tutti_placement_create(api.world, api.MEMORY, api.ints([0]), api.ints([1]), 1, ctypes.byref(place)))
    layout = api.Layout(ctypes.sizeof(api.Layout), place, None, api.TYPES.index(kind), len(shape),
                        api.ints(shape, ctypes.c_int64), 0, None, b"alone")
    x = None
    if value is not None:
        x = api.create(layout)
        own, _ = api.shard(x)
        if own is not None:
            own[...] = value
            api.put_back(x, own)
    api.must(call(ctypes.byref(layout) if x is None else x, ctypes.byref(y)))
    result = api.whole(y)
    for tensor in (x, y):
        if tensor is not None:
            api.tutti.tutti_tensor_destroy(tensor)
    api.tutti.tutti_placement_destroy(place)
    return result


def near(value, expected, spread, count):
    """Whether a mean of `count` numbers is within 5 of its standard deviations."""
    assert abs(value - expected) <= 5 * spread / np.sqrt(count), f"a mean of {value}, not {expected}"


def dropout(draw, rng):
    options = Dropout(draw.choice([0, 0.1, 0.5, 0.9]), rng.integers(1 << 62), rng.integers(1 << 62))
    address = ctypes.byref(options)
    def reference(torch, x):
        shape = list(x[0].shape)
        mask = alone(shape, "float64", lambda ones, y: api.ops.tutti_op_dropout(ones, address, None, y), 1)
        many = alone([5000], "float64", lambda ones, y: api.ops.tutti_op_dropout(ones, address, None, y), 1)
        near((many == 0).mean(), options.rate, np.sqrt(options.rate * (1 - options.rate)), 5000)
        assert np.all((mask == 0) | (np.abs(mask - 1 / (1 - options.rate)) < 1e-12))
        return x[0] * torch.from_numpy(mask)
    shape = shapes(draw)
    return unary_of_shape(draw, rng, shape, len(shape), lambda x, options, y: api.ops.tutti_op_dropout(x, address, options, y),
                          lambda x, y, dy, dx: api.ops.tutti_op_dropout_backward(x, address, dy, dx), reference,
                          f"rate {options.rate}", FLOATS + SHORTS)


def made(draw, rng, kinds, call, reference, says):
    """Without inputs: forward takes the layout."""
    shape, kind = shapes(draw), draw.choice(kinds)
    return Case([Input("y", np.zeros(shape), kind)], len(shape), kind, call, lambda torch, x: reference(torch, shape, kind), None,
                says)


def random_(draw, rng):
    options = Random(draw.randrange(2), draw.choice([0, -1, 3]), 4, rng.integers(1 << 62), rng.integers(1 << 62))
    address = ctypes.byref(options)
    def call(layout, y):
        return api.ops.tutti_op_random(layout, address, y)
    def reference(torch, shape, kind):
        many = alone([5000], "float64", call)
        mean, spread = (options.a, options.b) if options.distribution == 1 else ((options.a + 4) / 2, (4 - options.a) / np.sqrt(12))
        near(many.mean(), mean, spread, 5000)
        near(((many - mean) ** 2).mean(), spread ** 2, spread ** 2 * np.sqrt(2), 5000)
        return torch.from_numpy(alone(shape, kind, call))
    return made(draw, rng, FLOATS, call, reference, f"distribution {options.distribution} of {options.a}, {options.b}")


def fill(draw, rng):
    value = draw.choice([0, 1, 3, 7])
    return made(draw, rng, NUMBERS, lambda layout, y: api.ops.tutti_op_fill(layout, double(value), y),
                lambda torch, shape, kind: torch.full(shape, value, dtype=torch.float64), f"value {value}")


def arange(draw, rng):
    first, step = draw.choice([0, 1, 5]), draw.choice([1, 2, -1])
    def reference(torch, shape, kind):
        count = int(np.prod(shape))
        return torch.arange(count, dtype=torch.float64).mul(step).add(first).reshape(shape)
    return made(draw, rng, FLOATS + ["int32", "int64"],
                lambda layout, y: api.ops.tutti_op_arange(layout, double(first), double(step), y),
                reference, f"first {first} step {step}")


CASES = {"conv2d": conv2d, "max_pool2d": max_pool2d, "avg_pool2d": avg_pool2d, "batch_norm": batch_norm, "reduce": reduce,
         "softmax": softmax, "softmax_cross_entropy": softmax_cross_entropy, "dropout": dropout, "random": random_, "fill": fill,
         "arange": arange}
MADE = ("random", "fill", "arange")
