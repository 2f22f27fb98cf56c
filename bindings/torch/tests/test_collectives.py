"""Every collective of torch.distributed, with every dtype and ReduceOp, against gloo and against a reference."""
import unittest

import numpy
import torch
import torch.distributed as dist

from support import compare, ranks

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
EVERY = FLOATS + FLOAT8 + SIGNED + UNSIGNED + COMPLEX + [torch.bool]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
COUNTS = [1, 2, 3, 17, 1031]
INTEGERS = SIGNED + UNSIGNED


def name_of(op):
    return str(op).rsplit(".", maxsplit=1)[-1].strip("<>: 0123456789")


def values(dtype, count, rank, seed=0):
    """The input of a rank. Floats are near 1, so that products neither underflow nor overflow."""
    draw = numpy.random.default_rng([seed, rank, count])
    if dtype == torch.bool:
        return torch.from_numpy(draw.integers(0, 2, count)).to(dtype)
    if dtype in COMPLEX:
        return torch.complex(torch.from_numpy(draw.standard_normal(count)), torch.from_numpy(draw.standard_normal(count))).to(dtype)
    if dtype in INTEGERS:
        low = 0 if dtype in UNSIGNED else -9
        return torch.from_numpy(draw.integers(low, 10, count).astype(str(dtype).split(".")[1]))
    return torch.from_numpy(draw.uniform(0.5, 1.5, count) * draw.choice([-1, 1], count)).to(dtype)


def reduced(op, inputs, factor=None):
    """The reduction of these; None if it is not defined."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        return reduced_bools(op, inputs)
    if dtype in INTEGERS:
        return reduced_integers(op, inputs)
    if op in BITS or dtype in COMPLEX and op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        return None
    wide = torch.stack([one.to(torch.complex128 if dtype in COMPLEX else torch.float64) for one in inputs])
    if factor is not None:
        return (wide * factor).sum(0).to(dtype)
    if op == dist.ReduceOp.SUM:
        return wide.sum(0).to(dtype)
    if op == dist.ReduceOp.AVG:
        return (wide.sum(0) / len(inputs)).to(dtype)
    if op == dist.ReduceOp.PRODUCT:
        return wide.prod(0).to(dtype)
    return (wide.min(0) if op == dist.ReduceOp.MIN else wide.max(0)).values.to(dtype)


def reduced_bools(op, inputs):
    stacked = torch.stack(inputs)
    if op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.BOR):
        return stacked.any(0)
    if op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.BAND):
        return stacked.all(0)
    return stacked.sum(0) % 2 == 1 if op == dist.ReduceOp.BXOR else None


def reduced_integers(op, inputs):
    stacked = numpy.stack([one.numpy() for one in inputs])
    kind = stacked.dtype
    if op == dist.ReduceOp.AVG:
        return torch.from_numpy(numpy.trunc(stacked.astype(float).sum(0) / len(inputs)).astype(kind))
    how = {dist.ReduceOp.SUM: numpy.add, dist.ReduceOp.PRODUCT: numpy.multiply, dist.ReduceOp.MIN: numpy.minimum,
           dist.ReduceOp.MAX: numpy.maximum, dist.ReduceOp.BAND: numpy.bitwise_and, dist.ReduceOp.BOR: numpy.bitwise_or,
           dist.ReduceOp.BXOR: numpy.bitwise_xor}[op]
    return torch.from_numpy(how.reduce(stacked, axis=0, dtype=kind))


def reductions(check, call, label, result_of):
    """Every dtype and op: call(group, input, op) returns a result; result_of(reduced vector) is the expected one."""
    for dtype in EVERY:
        for op in OPS + BITS:
            count = COUNTS[(EVERY.index(dtype) + int(op)) % len(COUNTS)] * check.size
            inputs = [values(dtype, count, rank) for rank in range(check.size)]
            right = reduced(op, inputs)
            if dtype == torch.bool and op == dist.ReduceOp.SUM and not ranks.IS_TUTTI:
                continue  # gloo stores the number of trues in a bool
            exact = dtype in INTEGERS or dtype == torch.bool
            check.same("%s %s %s" % (label, name_of(op), dtype), lambda group: call(group, inputs[check.rank].clone(), op), exact,
                       reference=None if right is None else result_of(right), may_raise=right is None)


def all_reduce(group, tensor, op):
    dist.all_reduce(tensor, op, group)
    return tensor


def reduce_to_last(check):
    def call(group, tensor, op):
        dist.reduce(tensor, check.size - 1, op, group)
        return tensor if check.rank == check.size - 1 else None

    return call


def reduce_scatter_list(check):
    def call(group, tensor, op):
        parts = list(tensor.chunk(check.size))
        out = torch.empty_like(parts[0])
        dist.reduce_scatter(out, parts, op, group)
        return out

    return call


def reduce_scatter_tensor(check):
    def call(group, tensor, op):
        out = torch.empty_like(tensor[: tensor.numel() // check.size])
        dist.reduce_scatter_tensor(out, tensor, op, group)
        return out

    return call


def every_reduction(check):
    reductions(check, all_reduce, "all_reduce", lambda right: right)
    at_last = check.rank == check.size - 1
    reductions(check, reduce_to_last(check), "reduce", lambda right: right if at_last else None)
    mine = lambda right: right.chunk(check.size)[check.rank]
    reductions(check, reduce_scatter_list(check), "reduce_scatter", mine)
    reductions(check, reduce_scatter_tensor(check), "reduce_scatter_tensor", mine)


def premultiplied(check):
    for dtype in FLOATS + COMPLEX:
        for factor in (0.5, torch.tensor([2.0])):
            inputs = [values(dtype, 33, rank) for rank in range(check.size)]
            right = reduced(None, inputs, float(factor))
            op = dist._make_nccl_premul_sum(factor)  # pylint: disable=protected-access
            check.same("premul_sum %s %s" % (factor, dtype), lambda group: all_reduce(group, inputs[check.rank].clone(), op), False, right)


def every_move(check):
    size, rank = check.size, check.rank
    for dtype in EVERY + [torch.float8_e4m3fnuz]:
        stored = torch.uint8 if dtype == torch.float8_e4m3fnuz else dtype
        for count in (0, 1, 5, 1031):
            every = [values(stored, count, peer).view(dtype) for peer in range(size)]
            own, label = every[rank], "%s x %d" % (dtype, count)
            for root in (0, size - 1):
                check.same("broadcast " + label, lambda group: broadcast(group, own.clone(), root), True, every[root])
                check.same("gather " + label, lambda group: gather(group, own, root, size), True, every if rank == root else None)
                check.same("scatter " + label, lambda group: scatter(group, own, root, size), True, every[root])
            check.same("all_gather " + label, lambda group: all_gather(group, own, size), True, every)
            check.same("all_gather_into_tensor " + label, lambda group: all_gather_into(group, own, size), True, cat(every))
            check.same("all_to_all " + label, lambda group: all_to_all(group, own, size), True, every)
            check.same("all_to_all_single " + label, lambda group: all_to_all_single(group, own, size), True, cat(every))


def cat(tensors):
    return torch.cat([compare.raw(tensor) for tensor in tensors]).view(tensors[0].dtype)


def broadcast(group, tensor, root):
    dist.broadcast(tensor, root, group)
    return tensor


def gather(group, tensor, root, size):
    outs = [torch.empty_like(tensor) for _ in range(size)] if dist.get_rank() == root else None
    dist.gather(tensor, outs, root, group)
    return outs


def scatter(group, tensor, root, size):
    out = torch.empty_like(tensor)
    dist.scatter(out, [tensor] * size if dist.get_rank() == root else None, root, group)
    return out


def all_gather(group, tensor, size):
    outs = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(outs, tensor, group)
    return outs


def all_gather_into(group, tensor, size):
    out = torch.empty(size * tensor.numel(), dtype=tensor.dtype)
    dist.all_gather_into_tensor(out, tensor, group)
    return out


def all_to_all(group, tensor, size):
    outs = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_to_all(outs, [tensor] * size, group)
    return outs


def all_to_all_single(group, tensor, size):
    out = torch.empty(size * tensor.numel(), dtype=tensor.dtype)
    dist.all_to_all_single(out, cat([tensor] * size), group=group)
    return out


def special_values(check):
    nan, inf = float("nan"), float("inf")
    table = [[0.0, nan, 1.0, inf, -0.0, 2.0, -inf], [-0.0, 1.0, nan, -inf, -0.0, 3.0, -inf]]
    for dtype in FLOATS:
        own = torch.tensor(table[check.rank % 2], dtype=dtype)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
            check.same("special %s %s" % (name_of(op), dtype), lambda group: all_reduce(group, own.clone(), op), False)
        right = torch.maximum(*(torch.tensor(row, dtype=dtype) for row in table))
        if ranks.IS_TUTTI:  # gloo loses a NaN of some ranks
            check.same("special MAX %s" % dtype, lambda group: all_reduce(group, own.clone(), dist.ReduceOp.MAX), False, right)


def large(check):
    for count in ((1 << 20) + 3, 1 << 22):
        inputs = [torch.arange(count, dtype=torch.int32) * (rank + 1) for rank in range(check.size)]
        right = sum(inputs)
        check.same("all_reduce of %d" % count, lambda group: all_reduce(group, inputs[check.rank].clone(), dist.ReduceOp.SUM), True, right)
        check.same("all_gather of %d" % count, lambda group: all_gather(group, inputs[check.rank], check.size), True, inputs)


class Collectives(unittest.TestCase):
    def each(self, body, minimum, sizes=(2, 3)):
        for size in sizes:
            with self.subTest(ranks=size):
                for cells, _ in compare.run(size, body):
                    self.assertGreaterEqual(cells, minimum)

    def test_every_reduction_of_every_dtype_is_right(self):
        self.each(every_reduction, 4 * len(EVERY) * 8 - 4, (2, 3, 4))

    @unittest.skipUnless(ranks.IS_TUTTI, "gloo has no PREMUL_SUM")
    def test_premultiplied_sums_take_numbers_and_tensors(self):
        self.each(premultiplied, 12)

    def test_every_move_of_every_dtype_is_bit_equal(self):
        self.each(every_move, 500, (2, 3, 4))

    def test_nans_and_infinities_have_gloos_results(self):
        self.each(special_values, 8, (2,))

    def test_large_tensors_are_right(self):
        self.each(large, 4, (2, 4))


if __name__ == "__main__":
    unittest.main()
