"""Shared by tests of CUDA tensors on the stand-in (gpu.py): ranks, tensors, and the end of a rank."""
import datetime
import unittest

import torch
import torch.distributed as dist

from . import gpu, ranks

BOTH = "cpu:tutti,cuda:tutti"
SECONDS = datetime.timedelta(seconds=20)


def load():
    """For setUpModule."""
    if not ranks.IS_TUTTI:
        raise unittest.SkipTest("no torch_tutti")
    gpu.load()


def start(context, index=0, backend=BOTH, **named):
    gpu.begin(index, **named)
    context.init(backend)


def filled(count, value, index=0):
    return gpu.put(torch.full((count,), float(value)), index)


def filled_later(count, value, index=0):
    """Does not wait for the stream."""
    return torch.empty(count, device=gpu.device(index)).fill_(value)


def same(got, right, what):
    got = got.cpu()
    assert torch.equal(got, right), "%s: %s instead of %s" % (what, got.reshape(-1)[:8].tolist(), right.reshape(-1)[:8].tolist())


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError("nothing raised")


def end(context, body, *arguments):
    """Destroys the group, which waits for work in streams and for sends whose work was dropped: a rank that only
    exits is dead for the ranks that still need it."""
    body(context, *arguments)
    if dist.is_initialized():
        dist.destroy_process_group()


def run(body, *arguments):
    ranks.run(2, end, body, *arguments, init=False)
