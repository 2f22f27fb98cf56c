"""Runs the same program on gloo and on the backend under test, in the same ranks, with the same inputs.

A program is a function of a group that returns tensors (in lists, tuples, dicts) or plain values. Moved data and all
integers must be equal bit for bit; sums of floats must be close. Where gloo raises, the backend may succeed, and a
reference defines the result. All differences are collected, so that one run shows them all.
"""
import torch
import torch.distributed as dist

from support import ranks

MOST_SHOWN = 12
CLOSE = {  # relative and absolute
    torch.float64: (1e-12, 1e-12), torch.float32: (1e-5, 1e-5), torch.float16: (2e-2, 2e-2), torch.bfloat16: (8e-2, 8e-2),
    torch.complex128: (1e-12, 1e-12), torch.complex64: (1e-5, 1e-5), torch.float8_e4m3fn: (0.2, 0.2), torch.float8_e5m2: (0.4, 0.4),
}


class Raised:
    """A program that raised, with its exception."""

    def __init__(self, error):
        self.error = error

    def __repr__(self):
        return "%s: %s" % (type(self.error).__name__, str(self.error).split("\n")[0][:200])


def attempt(program, group):
    try:
        return program(group)
    except Exception as error:  # pylint: disable=broad-except
        return Raised(error)


def raw(tensor):
    return tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def difference(ours, theirs, exact):
    """None, or the place where two results differ."""
    if isinstance(theirs, torch.Tensor):
        if not isinstance(ours, torch.Tensor) or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return "%s instead of %s" % (describe(ours), describe(theirs))
        if theirs.layout != torch.strided:
            ours, theirs = ours.coalesce().to_dense(), theirs.coalesce().to_dense()
        if exact or theirs.dtype not in CLOSE:
            return None if torch.equal(raw(ours), raw(theirs)) else "%s instead of %s" % (show(ours), show(theirs))
        relative, absolute = CLOSE[theirs.dtype]
        wide = torch.complex128 if theirs.is_complex() else torch.float64
        one, two = ours.detach().to(wide), theirs.detach().to(wide)
        if torch.allclose(one, two, rtol=relative, atol=absolute, equal_nan=True):
            return None
        return "%s instead of %s" % (show(ours), show(theirs))
    if isinstance(theirs, (list, tuple)):
        if type(ours) is not type(theirs) or len(ours) != len(theirs):
            return "%s instead of %s" % (describe(ours), describe(theirs))
        pairs = zip(range(len(theirs)), ours, theirs)
    elif isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return "%s instead of %s" % (list(ours), list(theirs))
        pairs = ((key, ours[key], theirs[key]) for key in theirs)
    else:
        return None if ours == theirs else "%r instead of %r" % (ours, theirs)
    for key, one, two in pairs:
        found = difference(one, two, exact)
        if found:
            return "[%s] %s" % (key, found)
    return None


def describe(thing):
    return "%s%s" % (thing.dtype, list(thing.shape)) if isinstance(thing, torch.Tensor) else repr(thing)[:200]


def show(tensor):
    return "%s %s" % (tensor.dtype, (tensor.to(torch.float64) if tensor.is_floating_point() else tensor).reshape(-1)[:8].tolist())


class Check:
    """Has the group under test, `ours`, and a gloo group of the same ranks, `gloo`."""

    def __init__(self, context):
        self.context, self.rank, self.size = context, context.rank, context.size
        self.ours = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo")
        dist.barrier(group=self.gloo)  # Gloo's groups fail if a rank ends while another is still connecting to it
        self.found, self.better, self.cells = [], [], 0

    def same(self, label, program, exact=True, reference=None, may_raise=False):
        """`reference`: the correct result, compared with ours even if gloo fails. `may_raise`: ours may refuse."""
        theirs = attempt(program, self.gloo)
        ours = attempt(program, self.ours)
        self.cells += 1
        if isinstance(ours, Raised):
            if not isinstance(theirs, Raised) and not may_raise:
                self.found.append("%s: raises %r, gloo does not" % (label, ours))
            return
        if reference is not None:
            found = difference(ours, reference, exact)
            if found:
                self.found.append("%s: %s (reference)" % (label, found))
                return
        if isinstance(theirs, Raised):
            self.better.append(label)
        elif reference is None:
            found = difference(ours, theirs, exact)
            if found:
                self.found.append("%s: %s" % (label, found))

    def ours_only(self, label, program, reference, exact=True):
        """For operations with which gloo would hang or crash."""
        ours = attempt(program, self.ours)
        self.cells += 1
        found = repr(ours) if isinstance(ours, Raised) else difference(ours, reference, exact)
        if found:
            self.found.append("%s: %s (reference)" % (label, found))

    def done(self):
        if self.found:
            raise AssertionError("%d of %d differ from gloo:\n  %s" % (len(self.found), self.cells, "\n  ".join(self.found[:MOST_SHOWN])))
        return self.cells, self.better


def run(size, body, *arguments, **named):
    """body(check, *arguments) on `size` ranks; returns per rank the number of cells compared, and where gloo raised."""

    def on_rank(context):
        check = Check(context)
        body(check, *arguments)
        return check.done()

    return ranks.run(size, on_rank, **named)


def twice(size, body, *arguments, exact=False, **named):
    """The results of a body in a world of gloo and in a world of ours must agree."""
    theirs = ranks.run(size, body, *arguments, backend="gloo", **named)
    ours = ranks.run(size, body, *arguments, **named)
    for rank, (one, two) in enumerate(zip(ours, theirs)):
        found = difference(one, two, exact)
        if found:
            raise AssertionError("rank %d differs from gloo: %s" % (rank, found))
    return ours
