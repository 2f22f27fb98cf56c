"""More rounds for the cells of a comparison in which a peer is ahead of Tutti.

The best of several peers in one of several hundred cells is ahead by chance in some of them, and one or two rounds do not
tell how far times vary. So the cells that are behind after --rounds are measured again: Tutti and the peers that are ahead
of it, in turn. Which cells, and how many more rounds, is settled before the first of these rounds: stopping as soon as a
cell looks well would prefer Tutti. Cores become near or far on their own, so that a round may fall to the other tables;
there are at most TRIES times as many rounds as wanted."""
import collections

import report

TRIES = 3
Place = collections.namedtuple("Place", "ranks state collective form bytes library")


def wanted(tables):
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


def measure(rows, tables, options, again):
    """Appends to rows. again(round, ranks, collective, sizes, names of libraries) measures, and returns rows."""
    counts = rounds_of(rows)
    goals = {place: counts[place] + options.confirm for place in wanted(tables)}
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
