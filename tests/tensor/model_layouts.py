"""Which rank holds what, and the result of a redistribution, as described in model.py."""
from dataclasses import dataclass, field
from math import prod

import numpy as np

import model_values


@dataclass(frozen=True)
class Layout:
    shape: tuple
    ranks: tuple  # of the placement, in row-major order
    axes: tuple   # their sizes
    sbp: tuple    # for each axis "B", "S0" or "P(sum)"
    rule: str = "balanced"
    cuts: dict = field(default_factory=dict)  # offsets, by dimension


def split_dimension(entry):
    """The dimension that an entry of an sbp splits, or None."""
    return int(entry[1:]) if entry[0] == "S" else None


def reduction(entry):
    """The reduction of a partial entry of an sbp, or None."""
    return entry[2:-1] if entry[0] == "P" else None


def axes_that_split(layout, dimension):
    return [axis for axis, entry in enumerate(layout.sbp) if split_dimension(entry) == dimension]


def partial_axes(layout):
    return [axis for axis, entry in enumerate(layout.sbp) if reduction(entry)]


def row_major(coordinates, sizes):
    """The number of an element of an array of these sizes."""
    number = 0
    for coordinate, size in zip(coordinates, sizes):
        number = number * size + coordinate
    return number


def number_on(layout, axes, coordinates):
    """The row-major number of a rank's coordinates on some of the axes."""
    return row_major([coordinates[axis] for axis in axes], [layout.axes[axis] for axis in axes])


def members(layout):
    """Each rank with its coordinates."""
    return zip(layout.ranks, np.ndindex(*layout.axes))


def part(n, k, i, rule):
    """Where part i of k begins and ends in an interval of n."""
    if rule == "balanced":
        q, r = divmod(n, k)
        return i * q + min(i, r), (i + 1) * q + min(i + 1, r)
    c = -(-n // k)
    return min(i * c, n), min((i + 1) * c, n)


def box(layout, coordinates):
    """The interval of each dimension that the rank with these coordinates holds."""
    intervals = [(0, n) for n in layout.shape]
    for axis, entry in enumerate(layout.sbp):
        dimension = split_dimension(entry)
        if dimension is not None:
            begin, end = intervals[dimension]
            low, high = part(end - begin, layout.axes[axis], coordinates[axis], layout.rule)
            intervals[dimension] = begin + low, begin + high
    for dimension, offsets in layout.cuts.items():  # in place of the rule
        number = number_on(layout, axes_that_split(layout, dimension), coordinates)
        intervals[dimension] = offsets[number], offsets[number + 1]
    return intervals


def boxes(layout):
    return [box(layout, coordinates) for _, coordinates in members(layout)]


def counted(layout):
    """The sbp, with B on axes of size 1."""
    return tuple(entry if size > 1 else "B" for entry, size in zip(layout.sbp, layout.axes))


def same(one, other):
    """Whether the layouts are equal, so that partial shards are copied. Rules and cuts are equal if their boxes are."""
    return ((one.ranks, one.axes, counted(one), one.shape) == (other.ranks, other.axes, counted(other), other.shape)
            and boxes(one) == boxes(other))


def runs(layout):
    """The partial axes in runs; each run is one reduction."""
    found = []
    for axis in partial_axes(layout):
        name = reduction(layout.sbp[axis])
        if layout.axes[axis] == 1:
            continue
        if not found or found[-1][0] != name:
            found.append((name, []))
        found[-1][1].append(axis)
    return found


def value(kind, layout, terms):
    """The elements of the tensor in row-major order. `terms[p]`: the elements of the ranks with number p on the
    partial axes."""
    for name, axes in reversed(runs(layout)):
        together = prod(layout.axes[axis] for axis in axes)
        # The run's coordinates are the last remaining ones, so its terms are adjacent.
        terms = [model_values.reduce(kind, name, terms[first:first + together], together)
                 for first in range(0, len(terms), together)]
    return terms[0]


def to_partial(kind, layout, coordinates, elements):
    """The values that the rank with these coordinates would hold if nothing were split."""
    for axis in reversed(range(len(layout.sbp))):
        name = reduction(layout.sbp[axis])
        if name in ("sum", "prod", "bxor") and coordinates[axis] != 0:
            return np.full_like(elements, model_values.identity(kind, name))
    return elements


def cut(layout, coordinates, elements):
    """The shard of a rank: its box of the tensor."""
    slices = tuple(slice(begin, end) for begin, end in box(layout, coordinates))
    return np.array(elements.reshape(layout.shape)[slices])


def redistribute(kind, source, target, terms):
    """The shard of each rank of the target. `terms[p]`: the source's elements in row-major order, as the ranks with number p on its
    partial axes hold them."""
    if same(source, target):
        axes = partial_axes(source)
        return {rank: cut(source, coordinates, terms[number_on(source, axes, coordinates)])
                for rank, coordinates in members(source)}
    elements = value(kind, source, terms)
    return {rank: cut(target, coordinates, to_partial(kind, target, coordinates, elements))
            for rank, coordinates in members(target)}


def term_count(layout):
    return prod(layout.axes[axis] for axis in partial_axes(layout))
