"""How near Tutti comes to the limit of the memory: times of the limits (libraries.Limit) over its own, in per cent."""
import statistics

LEAST_BYTES = 16 << 20  # fewer bytes do not leave the caches
LIMITS = {"tutti": "limit", "tutti-mem": "limit-mem"}
GOAL = 80


def share(table, size, own):
    """Per cent, or None if one of the two times is missing."""
    limit, cell = table.cells.get((size, LIMITS[own])), table.cells.get((size, own))
    return None if limit is None or cell is None else 100 * limit.us / cell.us


def share_text(table, size, own):
    value = share(table, size, own)
    if value is None:
        return ""
    quiet = table.cells[size, LIMITS[own]].quiet and table.cells[size, own].quiet
    return "%.0f%%%s" % (value, "" if quiet else "!")


def limit_text(table, size, own):
    limit = table.cells.get((size, LIMITS[own]))
    return "" if limit is None else limit.text()


def columns(table):
    """The columns of a table about limits, as (head, text by size); none if it has no limits."""
    found = []
    for own, limit in LIMITS.items():
        if any((size, limit) in table.cells for size in table.sizes):
            found += [(limit, lambda size, own=own: limit_text(table, size, own)),
                      ("share", lambda size, own=own: share_text(table, size, own))]
    return found


def long_sizes(table):
    return [size for size in table.sizes if size >= LEAST_BYTES]


def table_line(table):
    """The least and the mean share of one table, for each of Tutti's kinds of memory."""
    line = [table.title()]
    for own in LIMITS:
        found = [(share(table, size, own), size) for size in long_sizes(table) if share(table, size, own) is not None]
        if not found:
            line += ["-", "-"]
            continue
        least, size = min(found)
        mark = " <" if least < GOAL else ""
        line += ["%.0f%% at %d MiB%s" % (least, size >> 20, mark), "%.0f%%" % statistics.fmean(value for value, _ in found)]
    return line


def lines(tables):
    yield "share of the memory's bandwidth from 16 MiB on (< where the least is below %d%%)" % GOAL
    measured = [table for table in tables if long_sizes(table) and columns(table)]
    if not measured:
        yield "  not measured: no such sizes"
        return
    grid = [["", "tutti: least", "mean", "tutti-mem: least", "mean"]] + [table_line(table) for table in measured]
    widths = [max(len(line[column]) for line in grid) for column in range(len(grid[0]))]
    for line in grid:
        yield "  ".join([line[0].ljust(widths[0])] + [text.rjust(width) for text, width in zip(line[1:], widths[1:])])
