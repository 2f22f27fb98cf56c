"""The cells of a comparison in which a peer is ahead of Tutti: as lines, as a count, and as docs/measurements/behind.md;
and more rounds for them.

The best of several peers in one of several hundred cells is ahead by chance in some of them, and one or two rounds do not
tell how far times vary. So the cells that are behind after --rounds are measured again: Tutti and the peers that are ahead
of it, in turn. Which cells, and how many more rounds, is settled before the first of these rounds: stopping as soon as a
cell looks well would prefer Tutti. Cores become near or far on their own, so that a round may fall to the other tables;
there are at most TRIES times as many rounds as wanted."""
import collections
import os
import shlex
import sys
import time

import report

TRIES = 3  # see measure_again()
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

    def summary(self):
        within = sum("spread" in place[4] for place in self.found)
        return "%d of %d cells are behind a peer beyond the spread of the run; %d more within it, %d were disturbed" % (
            len(self.clear), self.cells, within, len(self.found) - len(self.clear) - within)

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


def measure_again(rows, tables, options, again):
    """Appends to rows. again(round, ranks, collective, sizes, names of libraries) measures, and returns rows."""
    counts = rounds_of(rows)
    goals = {place: counts[place] + options.confirm for place in places_behind(tables)}
    for number in range(options.rounds + 1, options.rounds + 1 + TRIES * options.confirm):
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
