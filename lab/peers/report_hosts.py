"""The output of bench/compare_hosts besides its tables: rates against iperf3, times against bare sockets, and a page of
all results in Markdown, to be kept (docs/measurements/hosts.md)."""
import statistics
import time

import report

LARGE = 16 << 20
SMALL = 4 << 10
CROSSING = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # vectors that a host sends, divided by (n-1)/n


def in_turn(rows):
    """Drops the peers' rows of rounds in which the cores had another distance during Tutti's turn."""
    def turn(row):
        return tuple(row[name] for name in ("round", "ranks", "collective", "form", "bytes", "state"))
    own = {turn(row) for row in rows if row["library"] in report.OWN}
    return [row for row in rows if turn(row) in own]


class Rates:
    """The rates of iperf3 in each world and each state of the cores, over all rounds: GB/s one way, and each way of both."""

    def __init__(self):
        self.found = {}

    def add(self, world, rows):
        for row in rows:
            for name in ("one_way", "both_ways"):
                self.found.setdefault((world, row["state"], name), []).extend(row.get(name, []))

    def each_way(self, world, state):
        """GB/s of --bidir, or None."""
        found = self.found.get((world, state, "both_ways"))
        return statistics.median(found) if found else None

    def lines(self):
        for world in sorted({key[0] for key in self.found}):
            if not any(found for key, found in self.found.items() if key[0] == world):
                yield "iperf3, %s: not measured, is it installed?" % world
            for state in ("near", "far"):
                texts = [self.text(word, self.found.get((world, state, name)))
                         for name, word in (("one_way", "one way"), ("both_ways", "--bidir, each way"))]
                if any(texts):
                    yield "iperf3, %s, cores %s: %s" % (world, state, "; ".join(text for text in texts if text))

    @staticmethod
    def text(word, found):
        return "%s %.2f GB/s (%.2f to %.2f)" % (word, statistics.median(found), min(found), max(found)) if found else ""


# ---------------------------------------------------------------------------------------------- goals


def share_of(table, world, gigabytes, size, name="tutti"):
    """The per cent of that rate that Tutti, or another library, reaches, or None."""
    hosts, vectors = len(world.per_host), CROSSING.get(table.collective, 0)
    if size < LARGE or not vectors or not gigabytes or (size, name) not in table.cells:
        return None
    return 100 * vectors * (hosts - 1) / hosts * size / table.cells[size, name].us * 1e-3 / gigabytes


def large_share(table, world, gigabytes):
    """The least of these shares, as text."""
    shares = [(share, size) for size in table.sizes for share in [share_of(table, world, gigabytes, size)] if share is not None]
    return "%.0f%% at %s" % (min(shares)[0], report.size_text(min(shares)[1])) if shares else "-"


def small_ratio(table):
    """The largest ratio of Tutti's time to that of bare sockets up to 4 KiB, as text."""
    ratios = [(1 / table.ratio(size, "tutti", "limit"), size) for size in table.sizes
              if size <= SMALL and table.ratio(size, "tutti", "limit") is not None]
    return "%.2f at %s" % (max(ratios)[0], report.size_text(max(ratios)[1])) if ratios else "-"


def goal_lines(tables, rates, worlds):
    """Compares large sizes with iperf3 and the configured rate, small ones with bare sockets."""
    yield "rates from 16 MiB on against iperf3 --bidir and the rate set, times up to 4 KiB against bare sockets"
    named = {str(world): world for world in worlds}
    grid = [["", "of iperf3: least", "of the rate: least", "time / sockets: most"]]
    for table in tables:
        world = named[table.ranks]
        line = [large_share(table, world, rates.each_way(table.ranks, table.state)), large_share(table, world, world.gigabytes()),
                small_ratio(table)]
        if line != ["-"] * 3:
            grid.append([table.title()] + line)
    widths = [max(len(line[column]) for line in grid) for column in range(4)]
    for line in grid:
        yield "  ".join([line[0].ljust(widths[0])] + [text.rjust(width) for text, width in zip(line[1:], widths[1:])])


# ------------------------------------------------------------------------------------------- the page

PAGE = """# %s

%s. `bench/compare_hosts` wrote this page: it makes hosts of network namespaces, joined by veth, and runs each library
between them in turn, with one timing core; each rank rewrites its input and reads its result between operations, and every
result is checked (wrong elements: %s). To run it again, as root:

    bench/compare_hosts --python PYTHON_WITH_TORCH --out FOLDER \\
        %s

`FOLDER/hosts.md` is the new page; with `--resume` it continues where it was stopped.

Cores are *near* where a cache line takes less than %g ns from one to the other, else *far*; in virtual machines that
changes. It is measured before and after each row: tables are kept apart by it, and peers count only in rounds in
which they and Tutti had the same distance. Times are medians over rounds, in microseconds (m: milliseconds), one way
for ping_pong; xN: spread over rounds where above 1.2; (1): one round only; !: other processes used the cores, or half
of one. Samples were repeated, for a while, if a core was slower than it had been before (because of other work on its
other half, which a virtual machine cannot see). *peer / tutti* is the time of the best peer over Tutti's, bold where
the peer is ahead; *of iperf3* the rate of each host over that of `iperf3 --bidir` in each direction while the cores
had the same distance, *sockets of iperf3* that of bare sockets that move only the bytes that must cross the network
(column `limit`), and *tutti / sockets* the time over theirs.
"""


def wrong_text(rows):
    """The number of wrong elements, and in which libraries and collectives they are."""
    where = sorted({"%s %s" % (row["library"], row["collective"]) for row in rows if row["wrong"]})
    return "%d%s" % (sum(row["wrong"] or 0 for row in rows), " in " + ", ".join(where) if where else "")


def again(options):
    """The options that determine the measurements, quoted for a shell."""
    names = ["ranks", "congestion", "rate", "collectives", "rounds", "confirm", "samples", "sample_ms", "min_bytes", "max_bytes", "factor",
             "state"]
    values = [(name, getattr(options, name)) for name in names]
    words = ["--%s %s" % (name.replace("_", "-"), ",".join(value) if isinstance(value, list) else value)
             for name, value in values if value not in ("", None)]
    words = ["--rows"] * options.rows + words
    return " \\\n        ".join(" ".join(words[part:part + 4]) for part in range(0, len(words), 4))


def ratio_text(table, size, own):
    ratio = table.ratio(size, own)
    text = table.ratio_text(size, own)
    return "**%s**" % text if ratio is not None and ratio < 1 else text


def page_line(table, size, world, rates, own):
    cells = [table.cells[size, name].text() if (size, name) in table.cells else "" for name in table.libraries + ["limit"]]
    peer, limit = table.best_peer(size), table.ratio(size, "tutti", "limit")
    shares = [share_of(table, world, rates.each_way(table.ranks, table.state), size, name) for name in ("tutti", "limit")]
    return ([report.size_text(size) if size else "-"] + cells + [peer[0] if peer else "-"] +
            [ratio_text(table, size, name) for name in own] +
            ["" if share is None else "%.0f%%" % share for share in shares] + ["" if limit is None else "%.2f" % (1 / limit)])


def page_table(table, world, rates):
    own = [name for name in report.OWN if name in table.libraries]
    heads = ["size"] + table.libraries + ["limit", "best peer"] + ["peer / " + name for name in own] + [
        "of iperf3", "sockets of iperf3", "tutti / sockets"]
    lines = [heads] + [page_line(table, size, world, rates, own) for size in table.sizes]
    used = [column for column in range(len(heads)) if any(line[column] for line in lines[1:])]
    lines = [[line[column] for column in used] for line in lines]
    yield "| " + " | ".join(lines[0]) + " |"
    yield "|" + " ---: |" * len(used)
    yield from ("| " + " | ".join(line) + " |" for line in lines[1:])


def page_lines(rows, rates, tables, libraries, missing, machine, options):
    wrong, named = wrong_text(rows), {str(world): world for world in options.worlds}
    title = "Algorithms between hosts, next to each other" if options.rows else "Collectives between hosts, next to other libraries"
    yield PAGE % (title, time.strftime("%-d %B %Y", time.gmtime()), wrong, again(options), options.near_ns)
    yield from ("- `%s`: %s" % (library.name, library.note) for library in libraries)
    yield from ("- not compared: " + reason for reason in missing)
    yield ""
    yield from ("    " + line for line in [*machine, *rates.lines()])
    for table in sorted(tables, key=lambda table: (table.ranks, table.state != "near")):
        yield "\n## %s\n" % table.title()
        yield from page_table(table, named[table.ranks], rates)
