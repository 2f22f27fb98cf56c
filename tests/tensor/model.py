#!/usr/bin/env python3
"""The expected results of global tensors: an independent model in numpy, which shares no code with the library.

    model.py cases --seed N --count M [--world R | --world LOW..HIGH] > file
    model.py check [TEST...]

`cases` writes random redistributions, one a line, with the hash of what each rank must hold afterwards. The same arguments write
the same file. `check` tests the model itself (model_check.py). The model is in model_layouts.py (which rank holds what) and in
model_values.py (types and their arithmetic); model_cases.py draws the cases.

Layouts
-------

A placement is a list of distinct ranks of a world of R ranks, seen as a row-major array of 1 to 8 axes: the rank at position j of
the list has the coordinates of element j of such an array. Its order counts: [[0, 3], [1, 2]] is not [[0, 1], [2, 3]].

An sbp defines for each axis what the ranks along it hold:

    B      broadcast: equal copies
    S(d)   split: each rank a part of dimension d
    P(op)  partial: each rank a term; the value is the reduction `op` of the terms of all ranks along the axis.
           op is sum, prod, min, max, avg, band, bor or bxor

Axes are applied from the first to the last. Several axes may split one dimension: the second splits the part that the
first left. What a rank holds, its shard, is a box: one interval for each dimension. A shape has 0 to 8 dimensions. An
extent may be 0, and if it is less than the number of parts, some parts are empty.

The rule of a layout defines where a split cuts an interval of n into k parts:

    balanced  part i begins at i * q + min(i, r), where q = n // k and r = n % k
    chunk     part i is [min(i * c, n), min((i + 1) * c, n)), where c = ceil(n / k)

Explicit cuts of a dimension replace its rule: offsets 0 = c0 <= c1 <= ... <= cm = n for the m parts that all axes
which split this dimension make together, m being the product of their sizes. Part number i is [c_i, c_(i+1)); a rank has the part
whose number is the row-major index of its coordinates on these axes, in the order of the axes.

Axes of size 1 do not count: any entry on one is equivalent to B.

Value
-----

The value of a tensor with partial axes results from reductions over these axes, in their order; axes between them
that are not partial do not matter. Neighbours in this order with the same reduction are reduced together: such a run
is one reduction over its ranks, in row-major order of their coordinates; a run of avg is one sum and then one
division, by the number of its ranks. The last run is reduced first: P(max), P(sum) is the maximum of sums.

One reduction takes the values v0, v1, ... in this order, ((v0 op v1) op v2) ...:

    integers           wrap, in two's complement; avg wraps in its sum and truncates its quotient towards zero
    bool               one byte, 0 or 1; sum, max and bor are or; prod, min and band are and; bxor is xor; avg does not exist
    float32, float64   each step is rounded in the type; avg divides the sum once, in the type
    smaller floats     are widened to float32; each step, and the division of avg, is one of float32; the result is rounded to the
                       type once, at the end of the reduction, to nearest with ties to even. Subnormal numbers are kept. Larger
                       numbers become an infinity, in float8_e4m3 the largest number

band, bor and bxor are for integers and bool only. For min and max -0 is less than +0, and NaN wins. A computed NaN is the
positive quiet NaN without payload, in both float8 types 0x7f.

To partial
----------

If the target has partial axes, the value v is computed first. Then the last of the axes with P(sum), P(prod) or P(bxor) on which
the coordinate of a rank is not 0 decides: the rank holds the identity of that reduction, which is -0.0 for the sum of floats, 0 for
the sum of integers and bool, 1 for prod and 0 for bxor. A rank without such an axis holds v. So min, max, avg, band and bor hold
copies.

Redistribution
--------------

A tensor goes from a placement, sbp, shape, rule and cuts to others with the same type and number of elements. If both layouts
have equal ranks, axes, sbp (except on axes of size 1), shape and boxes of all ranks, each shard is copied, and terms stay
unreduced. Otherwise the target is to_partial(value(source)), cut into boxes; if the shapes differ, elements correspond by
their row-major number.

Cases
-----

A line is `key=value`, separated by single spaces:

    id=12 world=4 type=float32 seed=77 src.shape=5,7 src.ranks=0,3,1,2 src.axes=2,2 src.sbp=S0,P(sum) src.rule=balanced src.cuts=-
    dst.shape=7,5 dst.ranks=0,1 dst.axes=2 dst.sbp=S1 dst.rule=chunk dst.cuts=1:0,2,5 expect=<hash>,<hash>,-,-

(broken here, one line in the file). The shape of a scalar is `-`. Cuts are `dimension:offsets`, several of them separated by `;`,
and `-` if there are none. `expect` has a field for each rank of the world: `-` if the rank is not in the target's placement,
else the FNV-1a hash (64 bits, 16 hexadecimal digits) of its shard's bytes, little-endian, dense, row-major; an empty shard has the
hash of no bytes. Types have the library's names.

The source holds: for the element with row-major number g of the tensor, on a rank whose coordinates on the partial axes have the
row-major number p (0 without such axes),

    u = splitmix64(seed + g * 0x9E3779B97F4A7C15 + p * 0xD1B54A32D192ED03), modulo 2^64
    splitmix64(x): x += 0x9E3779B97F4A7C15; x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9; x = (x ^ x >> 27) * 0x94D049BB133111EB;
                   x ^ x >> 31
    integers       the low bits of u
    bool           u & 1
    floats         with e bits of exponent, m bits of mantissa and a bias b:
                   sign u & 1, exponent field b - 3 + ((u >> 1) & 0xffffffff) % 7, mantissa (u >> 33) & ((1 << m) - 1);
                   the mantissa of float64 is splitmix64(u) >> 12

So the floats of a source are neither 0 nor NaN, and have magnitudes from 1/8 to less than 16.
"""
import argparse
import random
import sys

import model_cases
import model_check


def worlds(text):
    """Least and greatest size of a world, from "4" or "2..6"."""
    low, dots, high = text.partition("..")
    sizes = {str(size): size for size in range(1, 9)}
    least, most = sizes.get(low, 9), sizes.get(high if dots else low, 0)
    if least > most:
        raise argparse.ArgumentTypeError(f"'{text}' is not the size of a world, which has 1 to 8 ranks; give --world 4 or --world 2..6")
    return least, most


def main():
    parser = argparse.ArgumentParser(description="The model of global tensors: cases with expected results, and its own test.")
    commands = parser.add_subparsers(dest="command", required=True)
    cases = commands.add_parser("cases", help="write random cases")
    cases.add_argument("--seed", type=int, required=True)
    cases.add_argument("--count", type=int, required=True)
    cases.add_argument("--world", type=worlds, default=(1, 8), metavar="R|LOW..HIGH")
    cases.add_argument("--any-order", action="store_true", help="only cases whose values do not depend on the order of a "
                       "reduction: between hosts that order is another one, see tensor.h")
    check = commands.add_parser("check", help="test the model itself")
    check.add_argument("tests", nargs="*", help="names of tests, as Class or Class.method; all without")
    options = parser.parse_args()
    if options.command == "check":
        return model_check.run(options.tests)
    draw = random.Random(options.seed)
    for index in range(options.count):
        case = model_cases.random_case(draw, index, options.world)
        while options.any_order and not model_cases.is_exact(case):
            case = model_cases.random_case(draw, index, options.world)
        print(model_cases.line(case))
    return 0


if __name__ == "__main__":
    sys.exit(main())
