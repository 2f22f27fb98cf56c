"""Tables and CSV of bench/overlap, from its rows (dictionaries; see FIELDS)."""
import csv
import statistics

import report

FIELDS = ["round", "pin", "ranks", "library", "bucket", "buckets", "factor", "rounds", "compute_us", "alone_us", "overlap_us",
          "sequential_us", "pieces_alone_us", "pieces_us", "calls_us", "wait_us", "exposed_us", "wrong", "before_ns",
          "after_ns", "state", "others_percent", "quiet"]
OWN = ("tutti", "tutti-mem", "tutti-ddp")
BUSY = 1.5  # factor of the usual compute


def slowdown(row):
    """How much longer the pieces of compute take while buckets travel."""
    return row["pieces_us"] / row["pieces_alone_us"]


def rounds_for(target_us, points):
    """The rounds of compute that take `target_us`: a straight line through two measured points (rounds, us), at least
    0."""
    (few, few_us), (many, many_us) = points
    each = max((many_us - few_us) / (many - few), 1e-3)
    return max(0, round(few + (target_us - few_us) / each))


class Cell:
    """All rounds of one library. Rows disturbed by other processes count only if there are no quiet ones."""

    def __init__(self, rows):
        self.quiet = any(row["quiet"] for row in rows)
        self.rows = [row for row in rows if row["quiet"] or not self.quiet]
        self.busy = False
        self.set_exposed([row["exposed_us"] for row in self.rows])

    def set_exposed(self, values):
        """Sets the time that the buckets add to the compute, one per row; and the share of them that takes no time,
        below 0 if overlapping costs more than it saves."""
        self.exposed, self.least, self.most = statistics.median(values), min(values), max(values)
        self.hidden = statistics.median(1 - value / row["alone_us"] for value, row in zip(values, self.rows))

    def compare_compute(self, usual_us):
        """A library must not profit from slowing the compute even when no data travels."""
        self.busy = self.median("compute_us") > BUSY * usual_us
        if self.busy:
            self.set_exposed([row["overlap_us"] - usual_us for row in self.rows])

    def median(self, value):
        return statistics.median(row[value] if isinstance(value, str) else value(row) for row in self.rows)

    def exposed_text(self):
        spread = "(1)" if len(self.rows) == 1 else " (%s..%s)" % (time_text(self.least), time_text(self.most))
        return time_text(self.exposed) + spread + ("*" if self.busy else "") + ("" if self.quiet else "!")


def time_text(us):
    """Microseconds as text in milliseconds."""
    return "%.3g" % (us / 1000) if abs(us) < 100000 else "%.0f" % (us / 1000)


class Table:
    """One load on one number of ranks at one distance of the cores: a row per library."""

    HEADS = ["", "compute", "buckets", "in sequence", "overlapped", "exposed", "hidden", "pieces", "calls", "wait",
             "best peer/this"]

    def __init__(self, key, rows, libraries):
        self.pin, self.ranks, self.state, self.bucket, self.factor = key
        self.buckets = rows[0]["buckets"]
        self.cells = {name: Cell([row for row in rows if row["library"] == name]) for name in libraries
                      if any(row["library"] == name for row in rows)}
        usual_us = statistics.median(cell.median("compute_us") for cell in self.cells.values())
        for cell in self.cells.values():
            cell.compare_compute(usual_us)

    def title(self):
        return "%d ranks, %s, cores %s, %d buckets of %s, compute x%g" % (
            self.ranks, "pinned" if self.pin == "pin" else "not pinned", self.state, self.buckets,
            report.size_text(self.bucket), self.factor)

    def best_peer(self):
        """The name of the library other than Tutti whose buckets add the least, or None."""
        peers = [name for name in self.cells if name not in OWN]
        return min(peers, key=lambda name: self.cells[name].exposed, default=None)

    def ratio(self, own):
        """The best peer's exposed time over Tutti's. None: one is missing, or one of them adds no time."""
        peer = self.best_peer()
        if peer is None or own not in self.cells or self.cells[own].exposed <= 0 or self.cells[peer].exposed <= 0:
            return None
        return self.cells[peer].exposed / self.cells[own].exposed

    def ratio_text(self, name):
        peer = self.best_peer()
        if name not in OWN or peer is None:
            return ""
        if self.cells[name].exposed <= 0:
            return "all hidden"
        disturbed = not (self.cells[name].quiet and self.cells[peer].quiet)
        ratio = self.ratio(name)
        return ("%.2f" % ratio if ratio is not None else "peer hides all") + ("!" if disturbed else "")

    def lines(self):
        table = [self.HEADS]
        for name, cell in self.cells.items():
            times = [time_text(cell.median(value)) for value in ("compute_us", "alone_us", "sequential_us", "overlap_us")]
            table.append([name] + times + [
                cell.exposed_text(), "%.0f %%" % (100 * cell.hidden), "x%.2f" % cell.median(slowdown),
                time_text(cell.median("calls_us")), time_text(cell.median("wait_us")), self.ratio_text(name)])
        widths = [max(len(line[column]) for line in table) for column in range(len(self.HEADS))]
        peer = self.best_peer()
        yield self.title() + (" (best peer: %s)" % peer if peer else "")
        for line in table:
            rest = [text.rjust(width) for text, width in zip(line[1:], widths[1:])]
            yield "  ".join(["  " + line[0].ljust(widths[0])] + rest).rstrip()

    def behind(self, own):
        """How far the best peer is ahead, in words, or "" if it is not."""
        peer = self.best_peer()
        if peer is None or own not in self.cells or self.cells[peer].exposed >= self.cells[own].exposed:
            return ""
        doubt = ""
        if self.cells[own].least <= self.cells[peer].most:
            doubt = " (within the spread)"
        elif not (self.cells[own].quiet and self.cells[peer].quiet):
            doubt = " (disturbed)"
        return "%s: %s ms, %s %s ms%s" % (own, time_text(self.cells[own].exposed), peer,
                                          time_text(self.cells[peer].exposed), doubt)


def make_tables(rows, libraries):
    """Tables of the near and of the far rows; mixed ones are dropped."""
    grouped = {}
    for row in rows:
        if row["state"] != "mixed":
            key = (row["pin"], row["ranks"], row["state"], row["bucket"], row["factor"])
            grouped.setdefault(key, []).append(row)
    return [Table(key, members, libraries) for key, members in sorted(grouped.items())]


def summary_lines(tables):
    yield "what the best peer's buckets add to the compute / what Tutti's add, geometric mean over loads"
    places = sorted({(table.pin, table.ranks, table.state) for table in tables})
    for pin, ranks, state in places:
        here = [table for table in tables if (table.pin, table.ranks, table.state) == (pin, ranks, state)]
        words = []
        for own in OWN:
            ratios = [table.ratio(own) for table in here if table.ratio(own) is not None]
            mean = "%.2f (%d/%d)" % (report.geometric_mean(ratios), len(ratios), len(here)) if ratios else "-"
            words.append("%s %s" % (own, mean))
        yield "  %d ranks, %s, cores %s: %s" % (ranks, "pinned" if pin == "pin" else "not pinned", state, ", ".join(words))


def behind_lines(tables):
    yield "where the best peer's buckets add less than Tutti's"
    found = [(table, table.behind(own)) for table in tables for own in OWN if table.behind(own)]
    for table, words in found:
        yield "  %s, %s" % (table.title(), words)
    if not found:
        yield "  nowhere"


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
