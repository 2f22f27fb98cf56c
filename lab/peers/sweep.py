"""The sweep of a comparison of collectives: options, sizes, the arguments of a driver, and the libraries' turns."""
import os
import sys
from functools import partial

import launches
import report

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier", "ping_pong"]
ON_DEMAND = ["gather", "scatter"]  # rooted, like broadcast: each rank in turn
# The columns in the order in which core.c writes them.
NAMES = ["collective", "form", "bytes", "us", "iterations", "wrong", "before_ns", "after_ns", "slow", "pace_ns"]
QUICK = {"factor": 64, "max_bytes": 16 << 20, "samples": 3, "sample_ms": 5.0, "confirm": 0}
FULL = {"factor": 4, "max_bytes": 256 << 20, "samples": 7, "sample_ms": 20.0, "confirm": 4}


def add_options(parser, libraries, full=None):
    """full: defaults without --quick that differ from FULL's."""
    full = dict(FULL, **(full or {}))
    parser.set_defaults(full=full)
    add = parser.add_argument
    add("--out", metavar="FOLDER", help="write compare.txt, .csv (all rows), .svg, behind.md, all_reduce.svg to FOLDER, "
        "and launches.jsonl as they end")
    add("--check", action="store_true", help="exit with 1 if a cell is behind a peer beyond the spread")
    add("--resume", action="store_true", help="continue from --out's launches.jsonl, with the same build")
    add("--quick", action="store_true", help="a small sweep: the second default of the options below that name two")
    add("--collectives", default=",".join(COLLECTIVES), help="%(default)s; also " + ",".join(ON_DEMAND))
    add("--libraries", help="only these, and tutti: " + libraries)
    add("--other", metavar="FOLDER", help="also measure another build folder of Tutti, of an earlier commit for example, as "
        "the peers `other` and `other-mem`")
    add("--min-bytes", type=launches.bytes_of, default=8, help="smallest size, optionally with K, M or G (%(default)s)")
    add("--max-bytes", type=launches.bytes_of, help="largest size (%dM, quick: 16M); always measured" % (full["max_bytes"] >> 20))
    add("--factor", type=int, help="factor from one size to the next (%d, quick: 64)" % full["factor"])
    add("--dense-bytes", type=launches.bytes_of, default=0, help="up to this size sizes double, whatever the factor (%(default)s)")
    add("--samples", type=int, help="samples of a row, at most 64 (7, quick: 3)")
    add("--sample-ms", type=float, help="time of a sample; at least one operation (20, quick: 5)")
    add("--confirm", type=int, help="more rounds for the cells that are behind after --rounds (4, quick: 0)")
    launches.add_options(parser)


def read_options(parser):
    options = parser.parse_args()
    launches.set_defaults(options, QUICK, options.full)
    options.collectives = options.collectives.split(",")
    for name in options.collectives:
        if name not in COLLECTIVES + ON_DEMAND:
            parser.error("no collective is called %s; there are %s" % (name, ", ".join(COLLECTIVES + ON_DEMAND)))
    if options.resume and not options.out:
        parser.error("--resume needs --out, the folder with launches.jsonl")
    if options.factor < 2 or options.max_bytes < options.min_bytes or options.min_bytes < 4:
        parser.error("sizes need a factor of 2 or more and 4 <= --min-bytes <= --max-bytes")
    return options


def sizes_of(options, collective):
    if collective == "barrier":
        return [0]
    sizes = []
    size = options.min_bytes
    while size < options.max_bytes:
        sizes.append(size)
        size *= 2 if size < options.dense_bytes else options.factor
    return sizes + [options.max_bytes]


def arguments_of(library, collective, sizes, options):
    """The arguments of a driver after its files; see core.h."""
    sizes = ",".join(map(str, sizes))
    return [collective, sizes, str(options.samples), str(options.sample_ms), library.pin, library.memory]


def measure(libraries, number, world, options, work, journal):
    """Rows of one round in one world (a number of ranks, or another argument of the libraries' start())."""
    rows = []
    for collective in options.collectives:
        rows += measure_collective(libraries, number, world, collective, sizes_of(options, collective), options, work, journal)
    return rows


def timed(rows):
    """Without rows in which the loop without the operation took longer than the loop with it: something has disturbed them."""
    return [row for row in rows if row["us"] > 0]


def measure_collective(libraries, number, world, collective, sizes, options, work, journal):
    """Rows of one collective, for which the libraries take turns. A library that fails is recorded in the journal's
    failures and not tried again."""
    rows = []
    name = report.world_text(world)
    for library in libraries:
        place = (library.name, collective, name)
        own_sizes = [size for size in sizes if library.measures(world, collective, size)]
        if place in journal.failures or not own_sizes:
            continue
        arguments = arguments_of(library, collective, own_sizes, options)
        new, trouble = journal.look_up((number, *place, *arguments), partial(
            launches.launch_quietly, library, world, arguments, NAMES, options, work))
        rows += [dict(row, round=number, wrong=row["wrong"] if library.checked else None) for row in timed(new)]
        note = "" if new and new[0]["quiet"] else ", disturbed"
        print("# round %d, %s, %s, %s: %s" % (number, name, collective, library.name, trouble or
              "%d rows%s" % (len(new), note)), file=sys.stderr, flush=True)
        if trouble:
            journal.failures[place] = trouble
    return rows


def write(options, text, rows, tables, names, page):
    """Writes the files of --out. page: lines of behind.md."""
    if not options.out:
        return
    with open(os.path.join(options.out, "compare.txt"), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    report.write_csv(os.path.join(options.out, "compare.csv"), rows)
    with open(os.path.join(options.out, "behind.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(page) + "\n")
    caption = text.split("\n")[1]
    report.write_plot(os.path.join(options.out, "compare.svg"), tables, names, caption)
    short = [table for table in tables if table.collective == "all_reduce" and table.state == "near"]
    report.write_plot(os.path.join(options.out, "all_reduce.svg"), short, names, caption)
