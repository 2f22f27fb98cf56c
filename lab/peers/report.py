"""Tables, CSV and plot of a comparison, from its rows (dictionaries; see FIELDS)."""
import csv
import math
import statistics

import shares

FIELDS = ["round", "ranks", "library", "collective", "form", "bytes", "us", "iterations", "wrong", "before_ns", "after_ns",
          "slow", "pace_ns", "state", "others_percent", "quiet"]
OWN = ("tutti", "tutti-mem")
COLORS = ["#c0392b", "#e67e22", "#2c6fbb", "#17a2b8", "#6c3fa0", "#2e8b57", "#7f7f7f", "#b08900", "#000000", "#d81b8c",
          "#4caf50", "#00695c", "#5d4037", "#9fa8da"]


def size_text(count):
    for unit, bytes_of in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_of and count % bytes_of == 0:
            return "%d %s" % (count // bytes_of, unit)
    return "%d B" % count


def time_text(us):
    if us >= 100000:
        return "%.0fm" % (us / 1000)
    return "%.3gm" % (us / 1000) if us >= 1000 else "%.3g" % us


def world_text(world):
    """The text of a number of ranks, or of another world."""
    return "%d ranks" % world if isinstance(world, int) else str(world)


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


class Cell:
    """All rounds of one library at one size. Rows disturbed by other processes count only if there are no quiet
    ones."""

    def __init__(self, rows):
        self.quiet = any(row["quiet"] for row in rows)
        times = sorted(row["us"] for row in rows if row["quiet"] or not self.quiet)
        self.us, self.rounds = statistics.median(times), len(times)
        usual = times[1:-1] if self.rounds >= 4 else times  # one odd round would hide that all others differ
        self.spread = usual[-1] / usual[0]

    def text(self):
        once = "(1)" if self.rounds == 1 else ""
        spread = "x%.1f" % self.spread if self.spread > 1.2 else ""
        return time_text(self.us) + once + spread + ("" if self.quiet else "!")


class Table:
    """One collective in one form, at one number of ranks and one distance of the cores: a row per size, a column per
    library."""

    def __init__(self, key, rows, libraries):
        self.ranks, self.state, self.collective, self.form = key
        present = {row["library"] for row in rows}
        self.libraries = [name for name in libraries if name in present]
        self.sizes = sorted({row["bytes"] for row in rows})
        grouped = {}
        for row in rows:
            grouped.setdefault((row["bytes"], row["library"]), []).append(row)
        self.cells = {place: Cell(members) for place, members in grouped.items()}

    def title(self):
        place = {"in": ", in place", "out": ", out of place"} if self.collective in ("all_reduce", "reduce_scatter") else {}
        return "%s, %s, cores %s%s" % (self.collective, world_text(self.ranks), self.state, place.get(self.form, ""))

    def best_peer(self, size):
        """(name, cell) of the fastest library that is not Tutti, or None."""
        peers = [(name, self.cells[size, name]) for name in self.libraries if name not in OWN and (size, name) in self.cells]
        return min(peers, key=lambda peer: peer[1].us, default=None)

    def ratio(self, size, own, against=None):
        """Time of the best peer (or of one) over Tutti's, or None if one of the two is missing."""
        peer = self.best_peer(size) if against is None else (against, self.cells.get((size, against)))
        if peer is None or peer[1] is None or (size, own) not in self.cells:
            return None
        return peer[1].us / self.cells[size, own].us

    def disturbed(self, size, own, against=None):
        """Whether one of the two times that ratio() divides was taken while other processes used the cores."""
        peer = self.best_peer(size)[1] if against is None else self.cells[size, against]
        return not (peer.quiet and self.cells[size, own].quiet)

    def ratio_text(self, size, own):
        ratio = self.ratio(size, own)
        return "-" if ratio is None else "%.2f%s" % (ratio, "!" if self.disturbed(size, own) else "")

    def mean_text(self, own, against=None):
        """The geometric mean over sizes; the number of sizes if some are missing; ! if one was disturbed."""
        present = [size for size in self.sizes if self.ratio(size, own, against) is not None]
        if not present:
            return "-"
        mean = geometric_mean([self.ratio(size, own, against) for size in present])
        some = "(%d/%d)" % (len(present), len(self.sizes)) if len(present) < len(self.sizes) else ""
        disturbed = any(self.disturbed(size, own, against) for size in present)
        return "%.2f%s%s" % (mean, some, "!" if disturbed else "")

    def lines(self):
        own = [name for name in OWN if name in self.libraries]
        limits = shares.columns(self)
        heads = ["size"] + self.libraries + ["best peer"] + ["peer/" + name for name in own] + [head for head, _ in limits]
        table = [heads]
        for size in self.sizes:
            peer = self.best_peer(size)
            line = [size_text(size) if size else "-"]
            line += [self.cells[size, name].text() if (size, name) in self.cells else "-" for name in self.libraries]
            line += [peer[0] if peer else "-"]
            table.append(line + [self.ratio_text(size, name) for name in own] + [text(size) for _, text in limits])
        means = [self.mean_text(name) for name in own] + [""] * len(limits)
        table.append(["geometric mean"] + [""] * (len(self.libraries) + 1) + means)
        widths = [max(len(line[column]) for line in table) for column in range(len(heads))]
        yield self.title()
        for line in table:
            yield "  ".join(text.rjust(width) for text, width in zip(line, widths)).rstrip()

    def behind(self):
        """Yields (size, own, ratio, doubt) if the best peer is ahead; doubt: another possible explanation, or ""."""
        for own in OWN:
            for size in self.sizes:
                ratio = self.ratio(size, own)
                if ratio is not None and ratio < 1:
                    spread = max(self.cells[size, own].spread, self.best_peer(size)[1].spread)
                    disturbed = " (disturbed)" if self.disturbed(size, own) else ""
                    yield size, own, ratio, " (within the spread)" if 1 / ratio <= spread else disturbed


def make_tables(rows, libraries):
    """Tables of the near and of the far rows; mixed ones are dropped."""
    grouped = {}
    for row in rows:
        if row["state"] != "mixed":
            grouped.setdefault((row["ranks"], row["state"], row["collective"], row["form"]), []).append(row)
    return [Table(key, members, libraries) for key, members in grouped.items()]


def summary_lines(tables):
    """Geometric means over sizes, a line per table: against the best peer at each size, then against each peer."""
    peers = sorted({name for table in tables for name in table.libraries if name not in OWN})
    yield "geometric means over sizes, time of the peer / time of Tutti (ordinary memory; tutti_mem_alloc)"
    lines = [["", "best at each"] + peers]
    for table in tables:
        lines.append([table.title()] + ["; ".join(table.mean_text(own, peer) for own in OWN) for peer in [None] + peers])
    widths = [max(len(line[column]) for line in lines) for column in range(len(peers) + 2)]
    for line in lines:
        yield "  ".join([line[0].ljust(widths[0])] + [text.rjust(width) for text, width in zip(line[1:], widths[1:])])


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


# ------------------------------------------------------------------------------------------------- plot

PANEL_W, PANEL_H, LEFT, TOP, GAP_X, GAP_Y = 320, 220, 64, 76, 80, 84


def panel(table, x0, y0, colors):
    """One table as a panel: time over size, both logarithmic, a line per library."""
    sizes = [math.log2(size) for size in table.sizes]
    times = [math.log10(cell.us) for (_, name), cell in table.cells.items() if name in table.libraries]
    low, high = math.floor(min(times)), max(math.ceil(max(times)), math.floor(min(times)) + 1)
    left, right = min(sizes), max(sizes) if max(sizes) > min(sizes) else min(sizes) + 1

    def place(size, us):
        x = x0 + (math.log2(size) - left) / (right - left) * PANEL_W
        return x, y0 + PANEL_H - (math.log10(us) - low) / (high - low) * PANEL_H

    yield '<text x="%d" y="%d" font-weight="bold">%s</text>' % (x0, y0 - 10, table.title())
    for power in range(low, high + 1):
        y = place(table.sizes[0], 10.0**power)[1]
        yield '<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>' % (x0, y, x0 + PANEL_W, y)
        yield '<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (x0 - 6, y + 4, axis_time(power))
    step = max(1, math.ceil(len(table.sizes) / 7))
    for size in table.sizes[::step]:
        x = place(size, 10.0**low)[0]
        yield '<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#eee"/>' % (x, y0, x, y0 + PANEL_H)
        yield '<text x="%.1f" y="%d" text-anchor="middle">%s</text>' % (x, y0 + PANEL_H + 16, size_text(size).replace(" ", ""))
    yield '<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#888"/>' % (x0, y0, PANEL_W, PANEL_H)
    for name in reversed(table.libraries):  # Tutti on top
        points = [place(size, table.cells[size, name].us) for size in table.sizes if (size, name) in table.cells]
        width = 2.5 if name in OWN else 1.3
        path = " ".join("%.1f,%.1f" % point for point in points)
        yield '<polyline points="%s" fill="none" stroke="%s" stroke-width="%s"/>' % (path, colors[name], width)
        for x, y in points:
            yield '<circle cx="%.1f" cy="%.1f" r="%s" fill="%s"/>' % (x, y, width, colors[name])


def axis_time(power):
    unit, scale = ("ns", 3) if power < 0 else ("us", 0) if power < 3 else ("ms", -3) if power < 6 else ("s", -6)
    return "%d %s" % (10 ** (power + scale), unit)


def write_plot(path, tables, libraries, caption):
    """One panel for each table in which Tutti is compared with a peer at half of the sizes or more."""
    compared = {table: sum(any(table.ratio(size, own) is not None for own in OWN) for size in table.sizes) for table in tables}
    tables = [table for table in tables if len(table.sizes) > 1 and 2 * compared[table] >= len(table.sizes)]
    if not tables:
        return
    colors = dict(zip(libraries, COLORS))
    columns = 2 if len(tables) == 4 else min(3, len(tables))
    width = max(LEFT + columns * (PANEL_W + GAP_X), LEFT + 90 * len(libraries))
    height = TOP + math.ceil(len(tables) / columns) * (PANEL_H + GAP_Y)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d"' % (width, height, width, height)
           + ' font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
           '<text x="%d" y="18">%s</text>' % (LEFT, caption.replace("&", "&amp;").replace("<", "&lt;"))]
    for place, name in enumerate(libraries):
        x = LEFT + 90 * place
        out.append('<line x1="%d" y1="34" x2="%d" y2="34" stroke="%s" stroke-width="3"/>' % (x, x + 18, colors[name]))
        out.append('<text x="%d" y="38">%s</text>' % (x + 23, name))
    for place, table in enumerate(tables):
        out += panel(table, LEFT + place % columns * (PANEL_W + GAP_X), TOP + place // columns * (PANEL_H + GAP_Y), colors)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n</svg>\n")
