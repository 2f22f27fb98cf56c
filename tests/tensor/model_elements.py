"""The model a second time, one element at a time in plain Python, for model_check.py: it shares only the words of a
case with the other modules. Numbers are Python's, whose float is float64; bits are integers."""
import functools
import itertools
import math
import operator
import re
import struct
from fractions import Fraction

SMALL_FLOATS = {"float8_e4m3": (4, 3), "float8_e5m2": (5, 2), "float16": (5, 10), "bfloat16": (8, 7)}
FLOATS = {**SMALL_FLOATS, "float32": (8, 23), "float64": (11, 52)}
NAN_MANTISSA = {"float8_e4m3": 7, "float8_e5m2": 3, "float16": 1 << 9, "bfloat16": 1 << 6, "float32": 1 << 22, "float64": 1 << 51}


def width(kind):
    return 8 if kind == "bool" else int(re.search(r"[0-9]+", kind).group())


def data(kind, codes):
    """The bytes of some elements."""
    return b"".join(code.to_bytes(width(kind) // 8, "little") for code in codes)


# Values of the source.

def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def source_bits(kind, seed, element, term):
    u = splitmix64((seed + element * 0x9E3779B97F4A7C15 + term * 0xD1B54A32D192ED03) % 2**64)
    if kind == "bool":
        return u % 2
    if kind not in FLOATS:
        return u % 2 ** width(kind)
    exponent_bits, mantissa_bits = FLOATS[kind]
    exponent = 2 ** (exponent_bits - 1) - 1 - 3 + u // 2 % 2**32 % 7
    mantissa = splitmix64(u) // 2**12 if kind == "float64" else u // 2**33 % 2**mantissa_bits
    return u % 2 * 2 ** (width(kind) - 1) + exponent * 2**mantissa_bits + mantissa


# Numbers from bits and back.

def number(kind, code):
    if kind not in FLOATS:
        return code - 2 ** width(kind) if kind.startswith("int") and code >= 2 ** (width(kind) - 1) else code
    exponent_bits, mantissa_bits = FLOATS[kind]
    sign = -1.0 if code >> (width(kind) - 1) else 1.0
    exponent, mantissa = code >> mantissa_bits & 2**exponent_bits - 1, code & 2**mantissa_bits - 1
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent == 2**exponent_bits - 1 and (kind != "float8_e4m3" or mantissa == 7):
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp(mantissa + 2**mantissa_bits, exponent - bias - mantissa_bits)


def bits(kind, value):
    if kind not in FLOATS:
        return value % 2 ** width(kind)
    exponent_bits, mantissa_bits = FLOATS[kind]
    bias = 2 ** (exponent_bits - 1) - 1
    infinity = 2**exponent_bits - 1 << mantissa_bits
    if math.isnan(value):
        return infinity | NAN_MANTISSA[kind]
    code = infinity
    if not math.isinf(value):
        exponent = max(math.frexp(value)[1] - 1, 1 - bias) if value else 1 - bias
        mantissa = round(math.ldexp(abs(value), mantissa_bits - exponent))  # ties to even; normal: with the bit that is not stored
        code = (exponent + bias - 1 << mantissa_bits) + mantissa
    code = min(code, 0x7E if kind == "float8_e4m3" else infinity)
    return code | (2 ** (width(kind) - 1) if math.copysign(1, value) < 0 else 0)


# Reductions.

def single(value):
    """Rounds to float32. An operation on two float32 in float64, followed by this, equals the operation in float32."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def reduce_floats(kind, name, values, divisor):
    rounded = (lambda value: value) if kind == "float64" else single
    if name in ("min", "max"):
        if any(math.isnan(value) for value in values):
            return math.nan
        return (min if name == "min" else max)(values, key=lambda value: (value, math.copysign(1, value)))
    step = operator.mul if name == "prod" else operator.add
    total = functools.reduce(lambda one, other: rounded(step(one, other)), values)
    return rounded(total / divisor) if name == "avg" else total


def reduce_integers(kind, name, values, divisor):
    if name == "avg":
        return int(Fraction(number(kind, bits(kind, sum(values))), divisor))  # int() drops the fraction
    return {"sum": sum, "prod": math.prod, "min": min, "max": max}[name](values)


def reduce_bits(name, codes):
    return functools.reduce({"band": operator.and_, "bor": operator.or_, "bxor": operator.xor}[name], codes)


def reduce(kind, name, codes, divisor):
    if name in ("band", "bor", "bxor"):
        return reduce_bits(name, codes)
    if kind == "bool":
        return int(any(codes)) if name in ("sum", "max") else int(all(codes))
    values = [number(kind, code) for code in codes]
    return bits(kind, (reduce_floats if kind in FLOATS else reduce_integers)(kind, name, values, divisor))


# Layouts. A rank holds, in each dimension, a list of indices.

def pieces(indices, count, rule):
    if rule == "chunk":
        length = math.ceil(Fraction(len(indices), count))
        return [indices[part * length:(part + 1) * length] for part in range(count)]
    rest, found = list(indices), []
    for part in range(count):  # each takes its share of what is left, rounded up
        share = math.ceil(Fraction(len(rest), count - part))
        found.append(rest[:share])
        rest = rest[share:]
    return found


def held(layout, coordinates):
    indices = [list(range(extent)) for extent in layout.shape]
    for dimension, extent in enumerate(layout.shape):
        splits = [axis for axis, entry in enumerate(layout.sbp) if entry == f"S{dimension}"]
        if dimension in layout.cuts:
            every = list(itertools.product(*(range(layout.axes[axis]) for axis in splits)))
            part = every.index(tuple(coordinates[axis] for axis in splits))
            begin, end = layout.cuts[dimension][part:part + 2]
            indices[dimension] = [index for index in range(extent) if begin <= index < end]
        else:
            for axis in splits:
                indices[dimension] = pieces(indices[dimension], layout.axes[axis], layout.rule)[coordinates[axis]]
    return indices


def every_rank(layout):
    return list(zip(layout.ranks, itertools.product(*map(range, layout.axes))))


def elements(layout, coordinates):
    """The row-major numbers in the tensor of the elements that a rank holds, in the order of its shard."""
    numbers = {index: place for place, index in enumerate(itertools.product(*map(range, layout.shape)))}
    return [numbers[index] for index in itertools.product(*held(layout, coordinates))]


def partial(layout):
    return [axis for axis, entry in enumerate(layout.sbp) if entry.startswith("P")]


def source_shards(case):
    """Bits by rank and element."""
    layout, axes = case.source, partial(case.source)
    terms = list(itertools.product(*(range(layout.axes[axis]) for axis in axes)))
    return {rank: {element: source_bits(case.kind, case.seed, element, terms.index(tuple(coordinates[axis] for axis in axes)))
                   for element in elements(layout, coordinates)}
            for rank, coordinates in every_rank(layout)}


def values(kind, layout, shards):
    """The bits of each element of a tensor whose ranks hold these shards."""
    axes, terms = partial(layout), {}
    for rank, coordinates in every_rank(layout):
        known = terms.setdefault(tuple(coordinates[axis] for axis in axes), {})
        for element, code in shards[rank].items():
            if known.setdefault(element, code) != code:
                raise AssertionError(f"ranks of {layout} differ in element {element}")
    several = [axis for axis in axes if layout.axes[axis] > 1]
    runs = [list(run) for _, run in itertools.groupby(several, lambda axis: layout.sbp[axis])]
    terms = {tuple(one for one, axis in zip(coordinates, axes) if axis in several): known for coordinates, known in terms.items()}

    def over(runs, coordinates, element):
        if not runs:
            return terms[coordinates][element]
        codes = [over(runs[1:], coordinates + more, element)
                 for more in itertools.product(*(range(layout.axes[axis]) for axis in runs[0]))]
        return reduce(kind, layout.sbp[runs[0][0]][2:-1], codes, len(codes))

    return [over(runs, (), element) for element in range(math.prod(layout.shape))]


def identity(kind, layout, coordinates):
    """The bits that a rank holds in place of the value, or None."""
    for entry, coordinate in reversed(list(zip(layout.sbp, coordinates))):
        if coordinate and entry in ("P(sum)", "P(prod)", "P(bxor)"):
            zero = -0.0 if kind in FLOATS else 0
            return bits(kind, zero if entry == "P(sum)" else int(entry == "P(prod)"))
    return None


def equal(case):
    one, other = case.source, case.target
    words = [[entry for entry, size in zip(layout.sbp, layout.axes) if size > 1] for layout in (one, other)]
    return (one.shape == other.shape and words[0] == words[1] and every_rank(one) == every_rank(other)
            and all(held(one, coordinates) == held(other, coordinates) for _, coordinates in every_rank(one)))


def redistribute(case):
    """The bytes of each rank's shard."""
    shards = source_shards(case)
    if equal(case):
        return {rank: data(case.kind, shard.values()) for rank, shard in shards.items()}
    value, found = values(case.kind, case.source, shards), {}
    for rank, coordinates in every_rank(case.target):
        instead = identity(case.kind, case.target, coordinates)
        found[rank] = data(case.kind, [value[element] if instead is None else instead
                                       for element in elements(case.target, coordinates)])
    return found
