"""PyTorch's flight recorder (2.15 and newer), and the output of its analyser, torchfrtrace, for entries of our
groups."""
import contextlib
import io
import json
import os
import time
import unittest

import torch
import torch.distributed as dist

from support import ranks

c10d = torch._C._distributed_c10d
BOTH = ("tutti", "gloo")  # under its own name, and in Gloo's place


def begin(context, backend, **named):
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(context.folder, "trace_")
    if backend == "gloo":
        import torch_tutti

        torch_tutti.replace_gloo()
    context.init(backend, **named)


def entries(backend):
    return json.loads(c10d._dump_fr_trace_json(backend=backend)).get("entries", [])


def collectives(context):
    size = context.size
    ones, all_of = torch.ones(8), torch.ones(8 * size)
    every = lambda: [torch.ones(8) for _ in range(size)]
    dist.all_reduce(ones)
    dist.reduce(ones, 0)
    dist.broadcast(ones, 1)
    dist.all_gather(every(), ones)
    dist.all_gather_into_tensor(all_of, ones)
    dist.reduce_scatter(torch.ones(8), every())
    dist.reduce_scatter_tensor(torch.ones(8), torch.ones(8 * size))
    dist.gather(ones, every() if context.rank == 0 else None, 0)
    dist.scatter(ones, every() if context.rank == 0 else None, 0)
    dist.all_to_all(every(), every())
    dist.all_to_all_single(torch.ones(size), torch.ones(size))
    dist.barrier()


def messages(context):
    """To the next rank, from the previous one: with blocking calls, and in a batch."""
    after, before = (context.rank + 1) % context.size, (context.rank - 1) % context.size
    request = dist.isend(torch.ones(4), after)
    dist.recv(torch.ones(4), before)
    request.wait()
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(3), after), dist.P2POp(dist.irecv, torch.ones(3), before)]):
        request.wait()


def settled(backend, but=0):
    """Ends are recorded when a work is waited for, polled or dropped, at the latest at the next operation."""
    until = time.monotonic() + 10
    while time.monotonic() < until and sum(entry["state"] != "completed" for entry in entries(backend)) > but:
        time.sleep(0.02)


def analysed(context):
    """The exit code and output of torchfrtrace for all ranks' dumps, when all have been written."""
    for rank in range(context.size):
        while not os.path.exists(os.path.join(context.folder, "written%d" % rank)):
            time.sleep(0.02)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        from torch.distributed.flight_recorder import fr_trace  # its logger keeps the current standard error

        try:
            fr_trace.main([context.folder, "-p", "trace_"])
            code = 0
        except SystemExit as end:
            code = end.code
    return code, said.getvalue()


def dump(context, backend):
    c10d._dump_fr_trace_file(context.rank, backend=backend)
    with open(os.path.join(context.folder, "written%d" % context.rank), "w", encoding="utf-8"):
        pass
    said = analysed(context) if context.rank == 0 else None
    if context.rank == 0:
        with open(os.path.join(context.folder, "analysed"), "w", encoding="utf-8"):
            pass
    while not os.path.exists(os.path.join(context.folder, "analysed")):
        time.sleep(0.02)
    return said


def sound(context, backend):
    """Messages come after the dump: among more than two ranks the analyser matches them wrongly, whatever the backend is."""
    begin(context, backend)
    collectives(context)
    part = dist.new_group([1, 2])
    if context.rank > 0:
        dist.all_reduce(torch.ones(5), group=part)
    settled(backend)
    config = json.loads(c10d._dump_fr_trace_json(backend=backend))["pg_config"]
    said = dump(context, backend)
    messages(context)
    settled(backend)
    return entries(backend), {name: entry["ranks"] for name, entry in config.items()}, said


def late(context, backend):
    """Rank 1 never calls the last operation."""
    begin(context, backend)
    collectives(context)
    work = None if context.rank == 1 else dist.all_reduce(torch.ones(5), async_op=True)
    said = dump(context, backend)
    last = entries(backend)[-1]
    if context.rank == 1:
        work = dist.all_reduce(torch.ones(5), async_op=True)
    work.wait()
    return said, last["profiling_name"], last["state"]


def differing(context, backend):
    """Rank 1 passes more elements. Tutti's own comparison fails on both sides; the dump shows it too."""
    begin(context, backend)
    collectives(context)
    try:
        dist.all_reduce(torch.ones(7 if context.rank == 1 else 5))
    except RuntimeError:
        pass
    return dump(context, backend)


def with_gloo(context):
    """A call that is executed by the real Gloo, which writes its own entries."""
    begin(context, "gloo")
    collectives(context)
    dist.group.WORLD.allreduce([torch.ones(3), torch.ones(3)]).wait()
    settled("gloo", but=1)
    return dump(context, "gloo")


def full(context):
    """More operations than the recorder keeps, and a reset."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "10"
    begin(context, "gloo")
    hanging = dist.irecv(torch.ones(1), 1 - context.rank)
    for count in range(25):
        dist.all_reduce(torch.ones(count + 1))
    kept = [(entry["input_sizes"], entry["state"]) for entry in entries("gloo")]
    dist.send(torch.ones(1), 1 - context.rank)
    hanging.wait()
    c10d._reset_fr_trace(backend="gloo")
    dist.all_reduce(torch.ones(2))
    return kept, [(entry["record_id"], entry["state"]) for entry in entries("gloo")]


def off(context):
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    begin(context, "gloo")
    dist.all_reduce(torch.ones(3))
    return entries("gloo")


@unittest.skipUnless(ranks.IS_TUTTI and ranks.HAVE_RECORDER, "this PyTorch has no flight recorder for other backends, or it is gloo that is tested")
class FlightRecorder(unittest.TestCase):
    def test_operations_of_a_sound_job_match_on_all_ranks(self):
        for backend in BOTH:
            with self.subTest(backend=backend):
                found = ranks.run(3, sound, backend, init=False)
                for rank, (seen, config, _) in enumerate(found):
                    names = [entry["profiling_name"] for entry in seen]
                    for name in ("all_reduce", "reduce", "broadcast", "all_gather", "_all_gather_base", "reduce_scatter", "gather", "scatter",
                                 "_reduce_scatter_base", "all_to_all", "barrier", "send %d->%d" % (rank, (rank + 1) % 3),
                                 "recv %d<-%d" % (rank, (rank - 1) % 3)):
                        self.assertIn("%s:%s" % (backend, name), names)
                    self.assertEqual([entry for entry in seen if entry["state"] != "completed" or not entry["retired"]], [])
                    # Gloo's own entries never have durations, others' do after _enable_collectives_timing.
                    self.assertEqual({"duration_ms" in entry for entry in seen}, {False})
                    self.assertEqual(config["0"], "[0, 1, 2]")
                    if rank > 0:
                        self.assertIn("[1, 2]", config.values())
                code, said = found[0][2]
                self.assertEqual(code, 0, said)
                for wrong in ("Not all ranks", "has errors", "Error", "mismatch"):
                    self.assertNotIn(wrong, said)

    def test_the_analyser_names_the_rank_that_does_not_call(self):
        for backend in BOTH:
            with self.subTest(backend=backend):
                found = ranks.run(3, late, backend, init=False)
                (code, said), name, state = found[0]
                self.assertEqual(code, 0, said)
                self.assertIn("Not all ranks joining collective", said)
                self.assertIn("missing ranks: {1}", said)
                self.assertEqual((name, state), (backend + ":all_reduce", "scheduled"))

    def test_the_analyser_names_the_rank_whose_call_differs(self):
        for backend in BOTH:
            with self.subTest(backend=backend):
                code, said = ranks.run(3, differing, backend, init=False)[0]
                self.assertEqual(code, 0, said)
                self.assertIn("Culprit rank 1", said)
                self.assertIn("[[7]]", said)

    def test_operations_of_the_real_gloo_can_be_analysed_too(self):
        code, said = ranks.run(3, with_gloo, init=False)[0]
        self.assertEqual(code, 0, said)
        self.assertNotIn("Not all ranks", said)

    def test_the_newest_operations_are_kept_in_gloos_place(self):
        for kept, after in ranks.run(2, full, init=False):
            self.assertEqual(kept, [([[count]], "completed") for count in range(16, 26)])
            self.assertEqual(after, [(0, "completed")])

    def test_nothing_is_recorded_where_it_is_switched_off(self):
        self.assertEqual(ranks.run(2, off, init=False), [[], []])


if __name__ == "__main__":
    unittest.main()
