"""Types and their arithmetic, as described in model.py.

An array holds elements as in memory: integers directly, bool as bytes 0 and 1, floats as their bits in unsigned
integers. So equal arrays are equal bit for bit. All dtypes are little-endian.
"""
import numpy as np

MASK = (1 << 64) - 1
STEP_OF_ELEMENT = 0x9E3779B97F4A7C15  # also splitmix64's own
STEP_OF_TERM = 0xD1B54A32D192ED03

INTEGERS = {"int8": "<i1", "uint8": "<u1", "int16": "<i2", "uint16": "<u2",
            "int32": "<i4", "uint32": "<u4", "int64": "<i8", "uint64": "<u8"}
FLOATS = {"float8_e4m3": (4, 3, 7), "float8_e5m2": (5, 2, 15), "float16": (5, 10, 15), "bfloat16": (8, 7, 127),
          "float32": (8, 23, 127), "float64": (11, 52, 1023)}  # bits of the exponent, of the mantissa, bias
NATIVE = {"float32": "<f4", "float64": "<f8"}
NAN = {"float8_e4m3": 0x7F, "float8_e5m2": 0x7F, "float16": 0x7E00, "bfloat16": 0x7FC0,
       "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
SPECIAL = {"float8_e4m3": 0x7F, "float8_e5m2": 0x7C, "float16": 0x7C00, "bfloat16": 0x7F80}  # first code that is not a number
TYPES = [*INTEGERS, "bool", *FLOATS]
REDUCTIONS = ["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]


def reductions(kind):
    if kind in FLOATS:
        return REDUCTIONS[:5]
    return [one for one in REDUCTIONS if kind != "bool" or one != "avg"]


def dtype(kind):
    if kind in FLOATS:
        exponent_bits, mantissa_bits, _ = FLOATS[kind]
        return np.dtype(f"<u{(1 + exponent_bits + mantissa_bits) // 8}")
    return np.dtype(INTEGERS.get(kind, "<u1"))


# Values of the source.

def splitmix64(x):
    """For an array of uint64; arrays wrap without a warning."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def source_values(kind, seed, count, term):
    """The elements of ranks with the number `term` on the partial axes, for a tensor of `count` elements, in
    row-major order."""
    start = np.uint64((seed + term * STEP_OF_TERM) & MASK)
    u = splitmix64(np.arange(count, dtype=np.uint64) * np.uint64(STEP_OF_ELEMENT) + start)
    if kind == "bool":
        u = u & np.uint64(1)
    if kind in FLOATS:
        exponent_bits, mantissa_bits, bias = FLOATS[kind]
        sign = u & np.uint64(1)
        exponent = np.uint64(bias - 3) + (u >> np.uint64(1) & np.uint64(0xFFFFFFFF)) % np.uint64(7)
        mantissa = u >> np.uint64(33) & np.uint64((1 << mantissa_bits) - 1)
        if kind == "float64":
            mantissa = splitmix64(u) >> np.uint64(12)
        u = sign << np.uint64(exponent_bits + mantissa_bits) | exponent << np.uint64(mantissa_bits) | mantissa
    return u.astype(dtype(kind))  # keeps the low bits


# Floats smaller than float32: a table of the magnitudes of the codes 0, 1, 2, ..., which ascend. It ends with the
# first code that is not a number (SPECIAL), as if the exponents continued there: from half way to it on, numbers
# overflow.

def magnitudes(kind):
    _, mantissa_bits, bias = FLOATS[kind]
    codes = np.arange(SPECIAL[kind] + 1)
    exponent, mantissa = codes >> mantissa_bits, codes & (1 << mantissa_bits) - 1
    subnormal = np.ldexp(mantissa.astype(float), 1 - bias - mantissa_bits)
    normal = np.ldexp(1 + mantissa / 2**mantissa_bits, exponent - bias)
    return np.where(exponent == 0, subnormal, normal)


MAGNITUDES = {kind: magnitudes(kind) for kind in SPECIAL}


def widen(kind, bits):
    """Floats as numbers to compute with: float64 as it is, all others as float32."""
    if kind in NATIVE:
        return bits.view(NATIVE[kind])
    sign_bit = 1 << (8 * bits.itemsize - 1)
    code = (bits & (sign_bit - 1)).astype(int)
    magnitude = MAGNITUDES[kind][np.minimum(code, SPECIAL[kind])]
    magnitude[code >= SPECIAL[kind]] = np.nan
    if kind != "float8_e4m3":  # which has no infinities
        magnitude[code == SPECIAL[kind]] = np.inf
    return np.where(bits & sign_bit, -magnitude, magnitude).astype(np.float32)


def narrow(kind, numbers):
    """The bits of numbers in the type: rounded to nearest, ties to the even code."""
    if kind in NATIVE:
        bits = numbers.view(dtype(kind)).copy()
    else:
        grid, magnitude = MAGNITUDES[kind], np.abs(numbers).astype(float)
        above = np.minimum(np.searchsorted(grid, magnitude), SPECIAL[kind])  # the first code that is not less
        below = np.maximum(above - 1, 0)
        middle = (grid[below] + grid[above]) / 2  # exact, in float64
        even = below + below % 2
        code = np.where(magnitude < middle, below, np.where(magnitude > middle, above, even))
        if kind == "float8_e4m3":
            code = np.minimum(code, SPECIAL[kind] - 1)  # saturates to the largest number
        sign_bit = 1 << (8 * dtype(kind).itemsize - 1)
        bits = (code + np.where(np.signbit(numbers), sign_bit, 0)).astype(dtype(kind))
    bits[np.isnan(numbers)] = NAN[kind]
    return bits


# Reductions.

def lesser(a, b):
    """The minimum, where -0 is less than +0; NaN wins."""
    chosen = np.where((a < b) | (a == b) & np.signbit(a), a, b)
    return np.where(np.isnan(a) | np.isnan(b), np.array(np.nan, a.dtype), chosen)


def greater(a, b):
    return -lesser(-a, -b)


FLOAT_STEPS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": lesser, "max": greater}
INTEGER_STEPS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
                 "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
BOOL_STEPS = {"sum": np.bitwise_or, "max": np.bitwise_or, "bor": np.bitwise_or, "prod": np.bitwise_and, "min": np.bitwise_and,
              "band": np.bitwise_and, "bxor": np.bitwise_xor}


def reduce(kind, reduction, terms, divisor=1):
    """One reduction of arrays, from the first to the last. avg divides by `divisor`, which may be less than the number of terms."""
    if kind in FLOATS:
        with np.errstate(all="ignore"):
            total = widen(kind, terms[0])
            for term in terms[1:]:
                total = FLOAT_STEPS[reduction](total, widen(kind, term))
            if reduction == "avg":
                total = total / total.dtype.type(divisor)
            return narrow(kind, total)
    steps = BOOL_STEPS if kind == "bool" else INTEGER_STEPS
    total = terms[0]
    for term in terms[1:]:
        total = steps[reduction](total, term)
    if reduction == "avg":
        quotient = total // total.dtype.type(divisor)  # rounds down
        total = quotient + ((total < 0) & (quotient * total.dtype.type(divisor) != total))
    return total.astype(dtype(kind))


def identity(kind, reduction):
    """The identity of a sum, product or xor, as an element of the type's array."""
    number = {"sum": -0.0, "prod": 1.0, "bxor": 0.0}[reduction]
    if kind in FLOATS:
        return narrow(kind, np.array([number], NATIVE.get(kind, "<f4")))[0]
    return dtype(kind).type(number)


def fnv1a(data):
    """The 64-bit FNV-1a hash of bytes."""
    code = 0xCBF29CE484222325
    for byte in data:
        code = (code ^ byte) * 0x100000001B3 & MASK
    return code
