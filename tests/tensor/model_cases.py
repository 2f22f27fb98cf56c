"""Random redistributions, and the lines of a case file (model.py's text)."""
from dataclasses import dataclass, replace
from math import prod

from model_layouts import (Layout, axes_that_split, box, boxes, members, number_on, redistribute, reduction, runs,
                           split_dimension, term_count)
from model_values import FLOATS, TYPES, fnv1a, reductions, source_values

MOST_ELEMENTS = 4000
MOST_ELEMENTS_RARELY = 30000  # in one case of 50


@dataclass(frozen=True)
class Case:
    number: int
    world: int
    kind: str
    seed: int
    source: Layout
    target: Layout


def terms(case):
    count = prod(case.source.shape)
    return [source_values(case.kind, case.seed, count, term) for term in range(term_count(case.source))]


def shards(case):
    """The shard that each rank of the target's placement must hold."""
    return redistribute(case.kind, case.source, case.target, terms(case))


def is_exact(case):
    """Whether its value has the same bits for every order in which the ranks of a run are reduced. Two terms have
    only one order."""
    return case.kind not in FLOATS or all(name in ("min", "max") or prod(case.source.axes[axis] for axis in axes) <= 2
                                          for name, axes in runs(case.source))


# Lines.

def text(numbers):
    return ",".join(map(str, numbers)) or "-"


def layout_text(prefix, layout):
    cuts = ";".join(f"{dimension}:{text(offsets)}" for dimension, offsets in sorted(layout.cuts.items())) or "-"
    return (f"{prefix}.shape={text(layout.shape)} {prefix}.ranks={text(layout.ranks)} {prefix}.axes={text(layout.axes)} "
            f"{prefix}.sbp={text(layout.sbp)} {prefix}.rule={layout.rule} {prefix}.cuts={cuts}")


def line(case):
    hashes, known = ["-"] * case.world, {}
    for rank, shard in shards(case).items():
        data = shard.tobytes()
        if data not in known:
            known[data] = f"{fnv1a(data):016x}"
        hashes[rank] = known[data]
    return (f"id={case.number} world={case.world} type={case.kind} seed={case.seed} {layout_text('src', case.source)} "
            f"{layout_text('dst', case.target)} expect={text(hashes)}")


# Placements.

def primes(n):
    """The prime factors of a number."""
    first = next((one for one in range(2, n + 1) if n % one == 0), None)
    return [first, *primes(n // first)] if first else []


def factors(draw, total, count):
    """`count` numbers whose product is `total`."""
    found = [1] * count
    for prime in primes(total):
        found[draw.randrange(count)] *= prime
    return tuple(found)


def axes_over(draw, ranks):
    """Axes longer than 1, often as many as possible, and sometimes other axes between them."""
    axes = primes(ranks) or [1]
    draw.shuffle(axes)
    for _ in range(draw.choice([0, len(axes) - 1, draw.randrange(len(axes))])):
        at = draw.randrange(len(axes) - 1)
        axes[at:at + 2] = [axes[at] * axes[at + 1]]
    for _ in range(draw.choices([0, 1, 2, 8 - len(axes)], [40, 6, 3, 1])[0]):
        axes.insert(draw.randint(0, len(axes)), 1)
    return tuple(axes)


def some_of(draw, ranks):
    """Often all of them, in ascending or any order; numbers of ranks that make several axes are preferred."""
    counts = range(1, len(ranks) + 1)
    count = draw.choice([len(ranks), *draw.choices(counts, [1 + 4 * len(primes(count)) for count in counts])])
    return in_order(draw, draw.sample(sorted(ranks), count))


def in_order(draw, ranks):
    ranks = sorted(ranks)
    if draw.random() < 0.6:
        draw.shuffle(ranks)
    return tuple(ranks)


def other_ranks(draw, world, ranks):
    """The target's ranks: the source's, possibly in another order; some of them; all or some of them and others; only
    others; any."""
    everyone = range(world)
    apart = [rank for rank in everyone if rank not in ranks]
    relation = draw.choice(["equal", "order", "within", "around", "apart", "overlapping", "any"])
    if relation == "equal":
        return ranks
    if relation == "order":
        return in_order(draw, ranks)
    if relation == "within":
        return some_of(draw, ranks)
    if relation == "around" and apart:
        return in_order(draw, [*ranks, *some_of(draw, apart)])
    if relation == "apart" and apart:
        return some_of(draw, apart)
    if relation == "overlapping" and apart and len(ranks) > 1:
        return in_order(draw, [*some_of(draw, ranks[1:]), *some_of(draw, apart)])
    return some_of(draw, everyone)


def random_sbp(draw, kind, axes, dimensions):
    """Often splits one dimension again, and repeats the reduction of the previous partial axis."""
    entries, last_dimension, last_reduction = [], None, None
    for _ in range(axes):
        how = draw.choices("BSP", [2, 5, 4])[0]
        if how == "S" and dimensions:
            if last_dimension is None or draw.random() < 0.6:
                last_dimension = draw.randrange(dimensions)
            entries.append(f"S{last_dimension}")
        elif how == "P":
            if last_reduction is None or draw.random() < 0.35:
                last_reduction = draw.choice(reductions(kind))
            elif last_reduction in ("sum", "avg") and kind != "bool":
                last_reduction = draw.choice(["sum", "avg"])
            entries.append(f"P({last_reduction})")
        else:
            entries.append("B")
    return tuple(entries)


# Shapes.

def parts_of(axes, sbp, dimension):
    return prod(size for size, entry in zip(axes, sbp) if split_dimension(entry) == dimension)


def random_shape(draw, parts, most):
    """An extent for each dimension, which is cut into its number of parts; limited to a number of elements."""
    near = [[1, 2, 3, 5, 7, n, n, max(n - 1, 1), n + 1, 2 * n + 1, 3 * n + 2] for n in parts]
    shape = [draw.choice(extents) for extents in near]
    while prod(shape) > most:  # no extent is 0 here
        shape[draw.randrange(len(shape))] = draw.choice([1, 2])
    if shape and draw.random() < 0.06:
        shape[draw.randrange(len(shape))] = 0
    elif shape and (most > MOST_ELEMENTS or draw.random() < 0.5):  # one long dimension
        dimension = draw.randrange(len(shape))
        others = prod(shape) // shape[dimension]
        count = int(most ** draw.uniform(0.9 if most > MOST_ELEMENTS else 0.4, 1))
        shape[dimension] = max(count // others, 1)
    return tuple(shape)


def random_cuts(draw, layout):
    """Cuts of some of the dimensions that are split."""
    cuts = {}
    for dimension, n in enumerate(layout.shape):
        if axes_that_split(layout, dimension) and draw.random() < 0.3:
            parts = parts_of(layout.axes, layout.sbp, dimension)
            cuts[dimension] = (0, *sorted(draw.randint(0, n) for _ in range(parts - 1)), n)
    return cuts


def reshaped(draw, shape):
    """Another shape with the same number of elements: its dimensions are drawn again, or some of them are merged or
    split."""
    if 0 in shape:
        new = [draw.choice([1, 2, 3, 5]) for _ in range(draw.randint(0, 3))]
        new.insert(draw.randint(0, len(new)), 0)
    elif draw.random() < 0.4:
        new = factors(draw, prod(shape), draw.randint(1, 4))
    else:
        new = list(shape)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(max(len(new) - 1, 1))
            if len(new) == 8 or len(new) >= 2 and draw.random() < 0.5:
                new[at:at + 2] = [new[at] * new[at + 1]]
            else:
                new[at:at + 1] = factors(draw, new[at], 2) if new else [1]
    return tuple(new) if tuple(new) != shape else reshaped(draw, shape)


# Cases.

def random_layout(draw, shape, ranks, axes, sbp):
    layout = Layout(shape, ranks, axes, sbp, draw.choice(["balanced", "balanced", "chunk"]))
    return replace(layout, cuts=random_cuts(draw, layout))


def written_out(layout):
    """The same boxes, all by explicit cuts."""
    cuts = {}
    for dimension, extent in enumerate(layout.shape):
        axes = axes_that_split(layout, dimension)
        begins = {number_on(layout, axes, coordinates): box(layout, coordinates)[dimension][0]
                  for _, coordinates in members(layout)}
        if axes:
            cuts[dimension] = (*(begins[number] for number in range(len(begins))), extent)
    return replace(layout, cuts=cuts)


def equal_layout(draw, layout):
    """The layout, or an equivalent one."""
    way = draw.choice(["itself", "itself", "written out", "other rule"])
    if way == "written out":
        return written_out(layout)
    other = replace(layout, rule="chunk" if layout.rule == "balanced" else "balanced")
    return other if way == "other rule" and boxes(other) == boxes(layout) else layout


def almost_equal_layout(draw, kind, layout):
    """The layout with one change, if possible."""
    way = draw.choice(["ranks", "axes", "entry", "reduction", "cuts"])
    at = draw.randrange(len(layout.axes))
    if way == "ranks":
        return replace(layout, ranks=layout.ranks[1:] + layout.ranks[:1])
    if way == "axes":
        axes = factors(draw, prod(layout.axes), len(layout.axes))
        return random_layout(draw, layout.shape, layout.ranks, axes, layout.sbp)
    if way == "cuts":
        return replace(layout, cuts=random_cuts(draw, layout))
    if way == "entry":
        at = draw.randrange(len(layout.axes))
        new = random_sbp(draw, kind, 1, len(layout.shape))[0]
    else:
        partial = [axis for axis, entry in enumerate(layout.sbp) if reduction(entry)]
        at = draw.choice(partial) if partial else at
        new = f"P({draw.choice(reductions(kind))})"
    return random_layout(draw, layout.shape, layout.ranks, layout.axes, layout.sbp[:at] + (new,) + layout.sbp[at + 1:])


def random_case(draw, number, worlds, most=None):
    """Every 10th has equal layouts, another one almost equal ones; every 6th has a target of another shape."""
    kind, seed = draw.choice(TYPES), draw.getrandbits(32)
    sizes = range(worlds[0], worlds[1] + 1)
    world = draw.choices(sizes, [1 + len(primes(size)) for size in sizes])[0]  # 4, 6 and 8 more often: they make several axes
    if most is None:
        most = MOST_ELEMENTS_RARELY if draw.random() < 0.02 else MOST_ELEMENTS
    dimensions = draw.choices(range(9), [3, 16, 24, 18, 8, 5, 0.7, 0.7, 0.7])[0]
    ranks = some_of(draw, range(world))
    axes = axes_over(draw, len(ranks))
    sbp = random_sbp(draw, kind, len(axes), dimensions)
    ranks_after = other_ranks(draw, world, ranks)
    axes_after = axes if len(ranks) == len(ranks_after) and draw.random() < 0.5 else axes_over(draw, len(ranks_after))
    sbp_after = random_sbp(draw, kind, len(axes_after), dimensions)
    parts = [draw.choice([parts_of(axes, sbp, one), parts_of(axes_after, sbp_after, one)]) for one in range(dimensions)]
    shape = random_shape(draw, parts, most)
    source = random_layout(draw, shape, ranks, axes, sbp)
    if number % 10 == 9:
        target = equal_layout(draw, source)
    elif number % 6 == 5:
        shape_after = reshaped(draw, shape)
        sbp_after = random_sbp(draw, kind, len(axes_after), len(shape_after))
        target = random_layout(draw, shape_after, ranks_after, axes_after, sbp_after)
    elif number % 10 == 4:
        target = almost_equal_layout(draw, kind, source)
    else:
        target = random_layout(draw, shape, ranks_after, axes_after, sbp_after)
    return Case(number, world, kind, seed, source, target)

