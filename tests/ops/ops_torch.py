"""Operators on global tensors, tested from outside: random shapes, layouts and wanted sbp, on all ranks of a world,
against PyTorch.

    tuttirun --standalone --nproc-per-node 4 python ops_torch.py libtutti.so libtutti_ops.so [--seed N] [--count M] [OPERATOR...]

Each case makes inputs in random layouts (placements of 1 to 4 ranks on one or two axes; balanced, chunked or explicit
cuts; partial values from random terms), runs the operator, with a wanted sbp in half of the cases, and compares the
whole result with PyTorch's in float64. Then the gradients: each must have the adjoint layout of its input, with the
same cuts, and autograd's values. All ranks draw the same cases; rank 0 has PyTorch and compares. `--only NUMBER`
repeats one case.
"""
import argparse
import ctypes
import random
import sys

import numpy as np

import ops_api as api
import ops_cases
import ops_cases_more
from ops_api import pointer

CASES = {**ops_cases.CASES, **ops_cases_more.CASES}
TOLERANCES = {"float32": 1e-4, "float64": 1e-9, "float16": 2e-2, "bfloat16": 1.2e-1}  # relative to the largest magnitude
SHOWN = 3  # wrong cases of an operator


everyone = pointer()  # a placement of all ranks; keeps groups of ranks, and plans, from case to case


class Wrong(Exception):
    pass


def to_torch(torch, given):
    value = torch.from_numpy(np.array(given.value))
    return value.double().requires_grad_(given.has_gradient) if value.is_floating_point() else value


def compare(what, kind, got, expected):
    expected = expected.detach()
    expected = (expected.double() if kind in TOLERANCES else expected).numpy()  # numpy has no bfloat16
    if got.shape != expected.shape:
        raise Wrong(f"{what} has the shape {got.shape}, not {expected.shape}")
    if kind not in TOLERANCES:
        if not np.array_equal(got, expected):
            raise Wrong(f"{what} is\n{got}\nnot\n{expected}")
        return
    got, expected = got.astype("float64"), expected.astype("float64")
    if not np.array_equal(np.isnan(got), np.isnan(expected)):
        raise Wrong(f"{what} has NaN in other places:\n{got}\nnot\n{expected}")
    error = np.max(np.nan_to_num(np.abs(got - expected), nan=0), initial=0)
    if error > TOLERANCES[kind] * max(1, np.max(np.nan_to_num(np.abs(expected), nan=0), initial=0)):
        raise Wrong(f"{what} is off by {error}:\n{got}\nnot\n{expected}")


def is_adjoint(x, dx, place):
    """The same shape and cuts, with broadcast and partial(sum) exchanged."""
    change = {api.BROADCAST: (api.PARTIAL, 0, 0), api.PARTIAL: (api.BROADCAST, 0, 0)}
    of_x, of_dx = api.layout_of(x), api.layout_of(dx)
    expected = [change.get(kind, (kind, dim, reduction)) for kind, dim, reduction in api.meaning(api.read_sbp(of_x, place), place)]
    return (api.meaning(api.read_sbp(of_dx, place), place) == expected and api.shape_of(x) == api.shape_of(dx) and
            of_x.type == of_dx.type and api.read_cuts(of_x, place) == api.read_cuts(of_dx, place))


class Judged:
    """One case on this rank."""

    def __init__(self, draw, rng, name, number, place, torch):
        self.draw, self.rng, self.name, self.number, self.place, self.torch = draw, rng, name, number, place, torch
        self.case = CASES[name](draw, rng)
        self.made, self.words, self.wrong, self.all_call = [], [], [], draw.random() < 0.5

    def note(self, function, *arguments):
        """Continues after an error, since the other ranks wait in the next call."""
        try:
            return function(*arguments)
        except (Wrong, AssertionError) as problem:
            self.wrong.append(str(problem))
            return None

    def own(self, tensor):
        self.made.append(tensor)
        return tensor

    def layout(self, value, kind, name, reduction):
        if kind == "bool":
            reduction = None
        layout = api.random_layout(self.draw, self.place, value.shape, kind, reduction, name)
        self.words.append(f"{name} {kind}{list(value.shape)} {api.read_sbp(layout, self.place)}{' chunked' * layout.rule}")
        return layout

    def tensor(self, value, kind, name, reduction):
        tensor = self.own(api.create(self.layout(value, kind, name, reduction)))
        self.words[-1] += f" cuts {api.read_cuts(api.layout_of(tensor), self.place)}"
        api.fill(self.rng, tensor, value, self.place)
        return tensor

    def wanted(self):
        if self.name in ops_cases_more.MADE or self.draw.random() < 0.5:
            return None
        reduction = "sum" if self.draw.random() < 0.9 else self.draw.choice(["max", "min", "avg"])
        return api.random_sbp(self.draw, self.place, self.case.ndims, None if self.case.kind == "bool" else reduction)

    def forward(self, tensors, wanted):
        y = self.own(pointer())
        if self.name in ops_cases_more.MADE:
            layout = self.layout(self.case.inputs[0].value, self.case.kind, "y", "sum")
            api.must(self.case.forward(ctypes.byref(layout), ctypes.byref(y)))
            return y
        options = api.Options(ctypes.sizeof(api.Options))
        if wanted is not None:
            options.sbp = (api.Sbp * len(wanted))(*wanted)
            self.words.append(f"wanted {wanted}")
        given = None if wanted is None and self.draw.random() < 0.5 else ctypes.byref(options)
        api.must(self.case.forward(tensors, given, ctypes.byref(y)))
        self.words.append(f"by {api.ops.tutti_op_explain().decode()}")
        return y

    def whole(self, tensor):
        """If the ranks outside the placement have called, they get a tensor, too, with the same layout."""
        return api.whole(tensor, everyone if self.all_call else None)

    def check_result(self, y, wanted, expected):
        sbp = api.read_sbp(api.layout_of(y), self.place)
        if wanted is not None and api.meaning(sbp, self.place) != api.meaning(wanted, self.place):
            self.wrong.append(f"its layout is {sbp}")
        if not self.place.is_member() and api.shard(y)[0] is not None:
            self.wrong.append("a rank outside of the placement has a shard")
        value = self.whole(y)
        if self.torch is not None and expected is not None:
            self.note(compare, "the result", self.case.kind, value, expected)

    def gradients(self, tensors, y, expected, references):
        inputs = self.case.inputs
        shape = api.shape_of(y)
        dy_value = ops_cases.numbers(self.rng, shape, self.case.kind)
        dy = self.tensor(dy_value, self.case.kind, "dy", "sum")
        asked = [i.has_gradient and self.draw.random() < 0.8 for i in inputs]
        if not any(asked):
            asked = [i.has_gradient for i in inputs]
        out = [self.own(pointer()) if ask else None for ask in asked]
        addresses = [None if o is None else ctypes.byref(o) for o in out]
        has_none = [any(s.kind == api.PARTIAL and s.reduction != 0 for s in api.read_sbp(api.layout_of(t), self.place))
                    for t in tensors]
        if any(none and (ask or self.name == "concat") for none, ask in zip(has_none, asked)):
            status = self.case.backward(tensors, y, dy, addresses)
            if status != api.ERR_ARGUMENT or any(o is not None and o.value for o in out):
                self.wrong.append("the gradient of an input that is partial, and not the sum, was not refused")
            return
        api.must(self.case.backward(tensors, y, dy, addresses))
        if expected is not None and expected.requires_grad and expected.shape == shape:
            expected.backward(self.torch.from_numpy(np.array(dy_value)).double())
        for given, tensor, dx, reference in zip(inputs, tensors, out, references):
            if dx is None:
                continue
            if not is_adjoint(tensor, dx, self.place):
                self.wrong.append(f"the gradient of {given.name} is {api.read_sbp(api.layout_of(dx), self.place)} cut at "
                                  f"{api.read_cuts(api.layout_of(dx), self.place)}")
            value = self.whole(dx)
            if self.torch is not None:
                gradient = reference.grad if reference.grad is not None else self.torch.zeros_like(reference)
                self.note(compare, f"the gradient of {given.name}", given.kind, value, gradient)

    def run(self):
        tensors = []
        if self.name not in ops_cases_more.MADE:
            for i in self.case.inputs:
                reduction = "sum" if self.draw.random() < 0.9 else self.draw.choice(["max", "min", "avg"])
                tensors.append(self.tensor(i.value, i.kind, i.name, reduction if i.is_finite else None))
        wanted = self.wanted()
        if not self.place.is_member() and not self.all_call:
            return
        y = self.forward(tensors, wanted)
        references, expected = [], None
        if self.torch is not None:
            references = [to_torch(self.torch, i) for i in self.case.inputs]
            expected = self.note(self.case.reference, self.torch, references)
        self.check_result(y, wanted, expected)
        is_float = all(i.kind in TOLERANCES for i in self.case.inputs if i.has_gradient)
        if self.case.backward is not None and is_float and any(i.has_gradient for i in self.case.inputs):
            self.gradients(tensors, y, expected, references if references else [None] * len(tensors))

    def end(self):
        for tensor in self.made + self.case.keep:
            api.tutti.tutti_tensor_destroy(tensor)

    def says(self):
        return (f"{self.name} case {self.number} on ranks {self.place.ranks} as {self.place.axes}: {'; '.join(self.words)}; "
                f"{self.case.says}")


def judge(name, number, seed, size, torch):
    """The error of a case on this rank, or None."""
    draw, rng = random.Random(f"{seed} {name} {number}"), np.random.default_rng([seed, number, sum(name.encode())])
    place = api.Place(draw, size)
    judged = Judged(draw, rng, name, number, place, torch)
    try:
        judged.run()
    except api.Refused as problem:
        if problem.status != api.ERR_ARGUMENT:
            raise  # the ranks are out of step
        judged.wrong.append(str(problem))
    finally:
        judged.end()
        api.tutti.tutti_placement_destroy(place.handle)
    return "\n    ".join([judged.says()] + judged.wrong) if judged.wrong else None


def main():
    parser = argparse.ArgumentParser(description="Judges Tutti's operators by PyTorch.")
    parser.add_argument("tutti")
    parser.add_argument("ops")
    parser.add_argument("operators", nargs="*", help="names; all without")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--only", type=int, help="the number of one case")
    options = parser.parse_intermixed_args()
    api.load(options.tutti, options.ops)
    rank, size = api.tutti.tutti_comm_rank(api.world), api.tutti.tutti_comm_size(api.world)
    api.must(api.tutti.tutti_placement_create(api.world, api.HOST, None, api.ints([size]), 1, ctypes.byref(everyone)))
    torch = None
    if rank == 0:
        import torch
        torch.set_num_threads(1)
    total, all_wrong = 0, 0
    for name in options.operators or CASES:
        wrong = 0
        for number in range(options.count) if options.only is None else [options.only]:
            problem = judge(name, number, options.seed, size, torch)
            wrong += problem is not None
            if problem is not None and wrong <= SHOWN:
                print(f"rank {rank}: {problem}", flush=True)
        if rank == 0 or wrong > 0:
            print(f"{name} {options.count} cases, {wrong} wrong" + ("" if rank == 0 else f" on rank {rank}"), flush=True)
        total, all_wrong = total + options.count, all_wrong + wrong
    if rank == 0:
        print(f"{len(options.operators or CASES)} operators, {total} cases, {all_wrong} wrong", flush=True)
    return all_wrong > 0


if __name__ == "__main__":
    sys.exit(main())
