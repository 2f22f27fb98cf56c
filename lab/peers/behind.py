"""The cells of a comparison in which a peer is ahead of Tutti: as lines, as a count, and as docs/measurements/behind.md;
and more rounds for them.

Cores become near or far on their own, so that Tutti and most peers may be measured in different states. A cell in which
fewer than half of the peers were measured, of those measured in any state, is thin: being ahead there says little. Thin
cells are measured again first, next to the peers that they lack, in at most FILLS rounds.

The best of several peers in one of several hundred cells is ahead by chance in some of them, and one or two rounds do not
tell how far times vary. So the cells that are behind after --rounds are measured again: Tutti and the peers that are ahead
of it, in turn. Which cells, and how many more rounds, is settled before the first of these rounds: stopping as soon as a
cell looks well would prefer Tutti. A round may fall to the tables of the other state; there are at most TRIES times as
many rounds as wanted."""
import collections
import os
import shlex
import sys
import time

import report

TRIES = 3
FILLS = 2
Place = collections.namedtuple("Place", "ranks state collective form bytes library")

# Options whose values apply to this machine only.
PLACES = {"--python": "PYTHON_WITH_TORCH", "--peers": "PEERS", "--out": "FOLDER", "--build": "BUILD", "--other": "OTHER_BUILD"}


def command():
    """The command line, as it would be on another machine."""
    words = [os.path.basename(sys.argv[0])] + sys.argv[1:]
    return "bench/" + shlex.join([PLACES.get(before, word) for before, word in zip([""] + words, words)])


class Behind:
    """The cells of some tables in which Tutti is behind. A cell is one size of one table, for one kind of Tutti's
    memory."""

    def __init__(self, tables):
        self.tables = tables
        self.cells = sum(table.ratio(size, own) is not None for table in tables for size in table.sizes for own in report.OWN)
        self.found = [(table, *place) for table in tables for place in table.behind()]
        self.clear = [place for place in self.found if not place[4]]
        self.thin = sum(table.ratio(size, own) is not None for table, size, own, _ in thin_cells(tables))

    def summary(self):
        within = sum("spread" in place[4] for place in self.found)
        text = "%d of %d cells are behind a peer beyond the spread of the run; %d more within it, %d were disturbed" % (
            len(self.clear), self.cells, within, len(self.found) - len(self.clear) - within)
        return text + ("; in %d fewer than half of the peers were measured in that state of the cores" % self.thin if self.thin else "")

    def lines(self):
        yield "where the best peer is ahead of Tutti"
        for table, size, own, ratio, doubt in self.found:
            where = "%s, %s, %s" % (table.title(), report.size_text(size) if size else "-", own)
            yield "  %-72s %s: %.2f%s" % (where, table.best_peer(size)[0], ratio, doubt)
        yield "  " + self.summary()

    def page(self, machine, libraries, confirm=0):
        """In Markdown. machine: lines about it; libraries: those that took part; confirm: the rounds added to cells behind."""
        yield "# Where a peer is ahead"
        yield ""
        yield "%s. Written by" % time.strftime("%d %B %Y", time.gmtime()).lstrip("0")
        yield ""
        yield "    " + command()
        yield ""
        yield "%s." % self.summary().capitalize()
        yield "The spread is the slowest round over the fastest one, for the cell with the larger spread; from four rounds on,"
        yield "the slowest and the fastest round are left out of it."
        if confirm:
            yield "Each cell that was behind was then measured in up to %d more rounds, if its state of the cores came back." % confirm
        yield ""
        yield from ("    " + line for line in machine)
        yield ""
        yield from ("- `%s`: %s" % (library.name, library.note) for library in libraries)
        yield ""
        if not self.found:
            yield "There is no such cell."
            return
        yield "| operation | size | Tutti | us | best peer | us | peer / Tutti | |"
        yield "| --- | ---: | --- | ---: | --- | ---: | ---: | --- |"
        for table, size, own, ratio, doubt in sorted(self.found, key=lambda place: (bool(place[4]), place[3])):
            name, peer = table.best_peer(size)
            cells = (table.title(), report.size_text(size) if size else "-", own, table.cells[size, own].text(), name, peer.text(),
                     "%.2f" % ratio, doubt.strip(" ()"))
            yield "| %s |" % " | ".join(cells)


def thin_cells(tables):
    """Yields (table, size, own, the peers that the cell lacks) where fewer than half of the peers were measured."""
    known = collections.defaultdict(set)
    for table in tables:
        for size, name in table.cells:
            if name not in report.OWN:
                known[table.ranks, table.collective, table.form, size].add(name)
    for table in tables:
        for size in table.sizes:
            peers = known[table.ranks, table.collective, table.form, size]
            lacking = {name for name in peers if (size, name) not in table.cells}
            for own in report.OWN:
                if (size, own) in table.cells and 2 * len(lacking) > len(peers):
                    yield table, size, own, lacking


def places_behind(tables):
    """The places of all cells that are behind, and of the peers ahead of them."""
    places = set()
    for table in tables:
        for size, own, _, _ in table.behind():
            ahead = [name for name in table.libraries if name not in report.OWN and (size, name) in table.cells
                     and table.ratio(size, own, name) < 1]
            places.update(Place(table.ranks, table.state, table.collective, table.form, size, name) for name in [own] + ahead)
    return places


def rounds_of(rows):
    """The number of undisturbed rounds in each place."""
    return collections.Counter(Place(*(row[name] for name in Place._fields)) for row in rows if row["quiet"])


def fill_in(rows, make_tables, options, again):
    """Measures thin cells next to the peers that they lack. Returns the number of the last round."""
    number = options.rounds
    while number < options.rounds + FILLS:
        launches = {}
        for table, size, _, lacking in thin_cells(make_tables(rows)):
            sizes, names = launches.setdefault((table.ranks, table.collective), (set(), set(report.OWN)))
            sizes.add(size)
            names.update(lacking)
        if not launches:
            break
        number += 1
        for (ranks, collective), (sizes, names) in sorted(launches.items(), key=str):
            rows += again(number, ranks, collective, sorted(sizes), names)
    return number


def measure_again(rows, make_tables, options, again):
    """Appends to rows, if options.confirm allows it. make_tables makes the tables of rows; again(round, ranks, collective,
    sizes, names of libraries) measures, and returns rows."""
    if options.confirm == 0:
        return
    last = fill_in(rows, make_tables, options, again)
    counts = rounds_of(rows)
    goals = {place: counts[place] + options.confirm for place in places_behind(make_tables(rows))}
    for number in range(last + 1, last + 1 + TRIES * options.confirm):
        launches = {}
        for place, goal in goals.items():
            if counts[place] < goal:
                sizes, names = launches.setdefault((place.ranks, place.collective), (set(), set()))
                sizes.add(place.bytes)
                names.add(place.library)
        if not launches:
            return
        for (ranks, collective), (sizes, names) in sorted(launches.items(), key=str):
            # A peer's time counts next to one of Tutti's that was taken at the same time.
            rows += again(number, ranks, collective, sorted(sizes), names | set(report.OWN))
        counts = rounds_of(rows)
