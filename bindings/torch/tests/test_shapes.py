"""Tensors that are not plain vectors: strided, empty, uneven, many at once, sparse. Against gloo."""
import unittest

import torch
import torch.distributed as dist

from support import compare, ranks


def numbered(rank, *shape, dtype=torch.float32):
    count = 1
    for extent in shape:
        count *= extent
    return (torch.arange(count, dtype=torch.float64) + 1000 * rank).to(dtype).reshape(shape)


def strided(check):
    """Non-contiguous views as inputs and outputs; the memory between their items does not change."""
    size, rank = check.size, check.rank
    views = {
        "transposed": lambda base: base.t(), "every second": lambda base: base[:, ::2], "column": lambda base: base[:, 1],
        "expanded": lambda base: base[:1, :1].expand(3, 4), "conjugated": lambda base: torch.complex(base, -base).conj(),
        "channels last": lambda base: base.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    }
    for label, view in views.items():

        def gathered(group):
            source = view(numbered(rank, 4, 6))
            outs = [torch.empty_like(source, memory_format=torch.contiguous_format) for _ in range(size)]
            dist.all_gather(outs, source, group)
            return outs

        check.same("all_gather of " + label, gathered, True, [view(numbered(peer, 4, 6)).resolve_conj().contiguous() for peer in range(size)])
        if label in ("expanded", "conjugated") or label in ("every second", "column") and not ranks.IS_TUTTI:
            continue  # gloo writes outputs with gaps as if they had none

        def all_reduced(group):
            base = numbered(rank, 4, 6)
            dist.all_reduce(view(base), group=group)
            return base

        def broadcasted(group):
            base = numbered(rank, 4, 6)
            dist.broadcast(view(base), size - 1, group)
            return base

        summed, sent = numbered(rank, 4, 6), numbered(rank, 4, 6)
        view(summed).copy_(sum(view(numbered(peer, 4, 6)) for peer in range(size)))
        view(sent).copy_(view(numbered(size - 1, 4, 6)))
        check.same("all_reduce of " + label, all_reduced, True, summed)
        check.same("broadcast of " + label, broadcasted, True, sent)


def strided_outputs(check):
    size, rank = check.size, check.rank

    def all_gather(group):
        base = torch.zeros(size, 4, 6)
        dist.all_gather([base[peer, :, ::2] for peer in range(size)], numbered(rank, 4, 3), group)
        return base

    right = torch.zeros(size, 4, 6)
    for peer in range(size):
        right[peer, :, ::2] = numbered(peer, 4, 3)
    check.same("all_gather into every second", all_gather, True, right)


def empty(check):
    size = check.size
    for shape in ((0,), (3, 0), (0, 5)):
        def programs(shape=shape):
            none = lambda: torch.empty(shape)
            yield "all_reduce", lambda group: dist.all_reduce(none(), group=group)
            yield "broadcast", lambda group: dist.broadcast(none(), 0, group)
            yield "reduce", lambda group: dist.reduce(none(), 0, group=group)
            yield "all_gather", lambda group: dist.all_gather([none() for _ in range(size)], none(), group)
            yield "all_gather_into_tensor", lambda group: dist.all_gather_into_tensor(torch.empty(0), torch.empty(0), group)
            yield "reduce_scatter", lambda group: dist.reduce_scatter(none(), [none() for _ in range(size)], group=group)
            yield "all_to_all", lambda group: dist.all_to_all([none() for _ in range(size)], [none() for _ in range(size)], group)
            yield "all_to_all_single", lambda group: dist.all_to_all_single(torch.empty(0), torch.empty(0), group=group)

        for label, program in programs():
            check.same("%s of %s" % (label, shape), lambda group: program(group) and None)


def uneven(check):
    size, rank = check.size, check.rank
    # Rank r sends r + p items to p.
    sent = [rank + peer for peer in range(size)]
    source = numbered(rank, sum(sent))
    parts = {peer: numbered(peer, sum(peer + other for other in range(size))).split([peer + other for other in range(size)])
             for peer in range(size)}
    right = torch.cat([parts[peer][rank] for peer in range(size)])

    def single(group):
        out = torch.empty(sum(sent))
        dist.all_to_all_single(out, source, sent, sent, group)
        return out

    def lists(group):
        outs = [torch.empty(count) for count in sent]
        dist.all_to_all(outs, list(source.split(sent)), group)
        return torch.cat(outs)

    def rows(group):
        """Splits count rows, not items."""
        out = torch.empty(sum(sent), 3)
        dist.all_to_all_single(out, source.reshape(-1, 1).expand(-1, 3).contiguous(), sent, sent, group)
        return out

    check.same("all_to_all_single with splits", single, True, right)
    check.same("all_to_all with uneven lists", lists, True, right)
    check.same("all_to_all_single of rows", rows, True, right.reshape(-1, 1).expand(-1, 3).contiguous())

    def all_gather(group):
        outs = [torch.empty(peer + 1, 2) for peer in range(size)]
        dist.all_gather(outs, numbered(rank, rank + 1, 2), group)
        return outs

    def reduce_scatter(group):
        out = torch.empty(rank + 1)
        dist.reduce_scatter(out, [numbered(rank, peer + 1) for peer in range(size)], group=group)
        return out

    if ranks.IS_TUTTI:  # gloo takes equal shapes only, and may hang on others
        check.ours_only("all_gather of uneven", all_gather, [numbered(peer, peer + 1, 2) for peer in range(size)])
        check.ours_only("reduce_scatter of uneven", reduce_scatter, sum(numbered(peer, rank + 1) for peer in range(size)))


def coalesced(check):
    size, rank = check.size, check.rank
    shapes = [(3,), (2, 5), (0,), (1031,)]

    def all_reduce(group):
        tensors = [numbered(rank, *shape) for shape in shapes]
        dist.all_reduce_coalesced(tensors, group=group)
        return tensors

    def all_gather(group):
        outs = [[torch.empty(shape) for shape in shapes] for _ in range(size)]
        dist.all_gather_coalesced(outs, [numbered(rank, *shape) for shape in shapes], group)
        return outs

    def manager(group):
        tensors = [numbered(rank, *shape) for shape in shapes]
        with dist._coalescing_manager(group, async_ops=True) as handle:
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        handle.wait()
        return tensors

    def manager_of_gathers(group):
        outs = [torch.empty(size * 3), torch.empty(size * 10)]
        with dist._coalescing_manager(group):
            for out in outs:
                dist.all_gather_into_tensor(out, numbered(rank, out.numel() // size), group)
        return outs

    sums = [sum(numbered(peer, *shape) for peer in range(size)) for shape in shapes]
    check.same("all_reduce_coalesced", all_reduce, True, sums, may_raise=True)
    check.same("all_gather_coalesced", all_gather, True, [[numbered(peer, *shape) for shape in shapes] for peer in range(size)])
    check.same("coalescing manager, all_reduce", manager, True, sums)
    check.same("coalescing manager, all_gather_into_tensor", manager_of_gathers, True,
               [torch.cat([numbered(peer, count) for peer in range(size)]) for count in (3, 10)])


def on_the_group(check):
    """Methods of the group object that dist.* refuses for names that it does not know."""
    size, rank = check.size, check.rank

    def all_reduce_coalesced(group):
        tensors = [numbered(rank, 4), numbered(rank, 2, 3)]
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = dist.ReduceOp.SUM
        group.allreduce_coalesced(tensors, options).wait()
        return tensors

    def all_gathers(group):
        outs = [torch.empty(size * 3), torch.empty(size * 5)]
        group.allgather_into_tensor_coalesced(outs, [numbered(rank, 3), numbered(rank, 5)]).wait()
        return outs

    def reduce_scatters(group):
        outs = [torch.empty(3), torch.empty(5)]
        group.reduce_scatter_tensor_coalesced(outs, [numbered(rank, size * 3), numbered(rank, size * 5)]).wait()
        return outs

    check.same("allreduce_coalesced", all_reduce_coalesced)
    check.same("allgather_into_tensor_coalesced", all_gathers)
    check.same("reduce_scatter_tensor_coalesced", reduce_scatters)


def sparse(check):
    """Each rank has its own rows; the sum has all of them."""
    rank = check.rank

    def all_reduce(group, dtype=torch.float32):
        indices = torch.tensor([[0, rank + 1, 2 * rank + 1], [0, 1, rank]])
        tensor = torch.sparse_coo_tensor(indices, torch.tensor([1, 2, 3]).to(dtype), (10, 10))
        group.allreduce([tensor]).wait()
        return tensor

    for dtype in (torch.float32, torch.float64, torch.int64):
        check.same("sparse all_reduce of %s" % dtype, lambda group: all_reduce(group, dtype), False)

    def none(group):
        tensor = torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (4, 4))
        group.allreduce([tensor]).wait()
        return tensor

    check.same("sparse all_reduce of nothing", none, False)


class Shapes(unittest.TestCase):
    def each(self, body, minimum, sizes=(2, 3)):
        for size in sizes:
            with self.subTest(ranks=size):
                for cells, _ in compare.run(size, body):
                    self.assertGreaterEqual(cells, minimum)

    def test_strided_tensors_are_read_and_written_in_place(self):
        self.each(strided, 10)

    def test_strided_outputs_of_all_gather_keep_the_gaps(self):
        self.each(strided_outputs, 1)

    def test_empty_tensors_are_not_a_special_case(self):
        self.each(empty, 24)

    def test_uneven_splits_and_lists_arrive_whole(self):
        self.each(uneven, 3, (2, 3, 4))

    def test_many_tensors_at_once_are_as_one_after_the_other(self):
        self.each(coalesced, 4)

    def test_methods_of_the_group_support_what_dist_refuses_for_unknown_names(self):
        self.each(on_the_group, 3)

    def test_sparse_sums_are_those_of_gloo(self):
        self.each(sparse, 4)


if __name__ == "__main__":
    unittest.main()
