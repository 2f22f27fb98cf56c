"""Sending and receiving: tags, any source, batches, objects. Compared with gloo if it supports them."""
import unittest

import torch
import torch.distributed as dist

from support import compare, ranks


def ring(check):
    size, rank = check.size, check.rank
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.uint8):
        for count in (0, 1, 1031, 1 << 18):
            own = (torch.arange(count) + rank).to(dtype)

            def program(group):
                got = torch.empty_like(own)
                requests = [dist.isend(own, (rank + 1) % size, group), dist.irecv(got, (rank - 1) % size, group)]
                for request in requests:
                    request.wait()
                return got

            check.same("ring of %s x %d" % (dtype, count), program, True, (torch.arange(count) + (rank - 1) % size).to(dtype))


def tags(check):
    """Tags distinguish messages, in any order of the receives."""
    rank = check.rank

    def program(group):
        if rank == 0:
            requests = [dist.isend(torch.tensor([float(tag)]), 1, group, tag) for tag in range(8)]
            for request in requests:
                request.wait()
        elif rank == 1:
            outs = {tag: torch.empty(1) for tag in range(8)}
            for tag in reversed(range(8)):
                dist.recv(outs[tag], 0, group, tag)
            return [float(outs[tag]) for tag in range(8)]
        return None

    check.same("tags", program, True, [float(tag) for tag in range(8)] if rank == 1 else None)


def any_source(check):
    size, rank = check.size, check.rank

    def program(group):
        if rank != 0:
            dist.send(torch.full((3,), float(rank)), 0, group)
            return None
        seen = {}
        for _ in range(size - 1):
            got = torch.empty(3)
            source = dist.recv(got, None, group)
            seen[source] = got.tolist()
        return dict(sorted(seen.items()))

    check.same("any source", program, True, {peer: [float(peer)] * 3 for peer in range(1, size)} if rank == 0 else None)


def batch(check):
    size, rank = check.size, check.rank

    def program(group):
        outs = [torch.empty(5) for _ in range(size)]
        operations = []
        for peer in range(size):
            if peer != rank:
                operations.append(dist.P2POp(dist.isend, torch.full((5,), float(10 * rank + peer)), peer, group))
                operations.append(dist.P2POp(dist.irecv, outs[peer], peer, group))
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        outs[rank].zero_()
        return outs

    right = [torch.full((5,), float(10 * peer + rank)) if peer != rank else torch.zeros(5) for peer in range(size)]
    check.same("batch_isend_irecv", program, True, right)


def strided(check):
    rank = check.rank

    def program(group):
        base = torch.zeros(4, 6)
        if rank == 0:
            dist.send(torch.arange(24.0).reshape(4, 6).t(), 1, group)
        elif rank == 1:
            dist.recv(base.t(), 0, group)
        return base

    # gloo sends contiguous tensors only
    right = torch.arange(24.0).reshape(4, 6) if rank == 1 else torch.zeros(4, 6)
    if ranks.IS_TUTTI:
        check.ours_only("strided", program, right)


def objects(check):
    size, rank = check.size, check.rank
    own = {"rank": rank, "list": list(range(rank + 1)), "nested": {"text": "x" * (100 * rank)}}
    every = [{"rank": peer, "list": list(range(peer + 1)), "nested": {"text": "x" * (100 * peer)}} for peer in range(size)]

    def all_gather(group):
        outs = [None] * size
        dist.all_gather_object(outs, own, group)
        return outs

    def gather(group):
        outs = [None] * size if rank == 0 else None
        dist.gather_object(own, outs, 0, group)
        return outs

    def broadcast(group):
        things = [own, rank] if rank == 0 else [None, None]
        dist.broadcast_object_list(things, 0, group)
        return things

    def scatter(group):
        out = [None]
        dist.scatter_object_list(out, every if rank == 0 else None, 0, group)
        return out[0]

    def send(group):
        things = [own]
        if rank == 0:
            dist.send_object_list(things, 1, group)
        elif rank == 1:
            dist.recv_object_list(things, 0, group)
        return things

    check.same("all_gather_object", all_gather, True, every)
    check.same("gather_object", gather, True, every if rank == 0 else None)
    check.same("broadcast_object_list", broadcast, True, [every[0], 0])
    check.same("scatter_object_list", scatter, True, every[rank])
    check.same("send_object_list", send, True, [every[0 if rank == 1 else rank]])


class PointToPoint(unittest.TestCase):
    def each(self, body, minimum, sizes=(2, 3)):
        for size in sizes:
            with self.subTest(ranks=size):
                for cells, _ in compare.run(size, body):
                    self.assertGreaterEqual(cells, minimum)

    def test_a_ring_moves_every_dtype_and_length(self):
        self.each(ring, 24)

    def test_tags_distinguish_messages(self):
        self.each(tags, 1)

    def test_receives_from_any_source_name_it(self):
        self.each(any_source, 1, (2, 3, 4))

    def test_batches_match_in_any_order(self):
        self.each(batch, 1, (2, 3, 4))

    def test_strided_tensors_are_sent_and_received(self):
        self.each(strided, 0)

    def test_objects_arrive_as_they_were(self):
        self.each(objects, 5)


if __name__ == "__main__":
    unittest.main()
