"""lab/peers/behind.py: which cells count as behind a peer, and the page that lists them."""
import os
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "lab", "peers"))
import behind  # pylint: disable=wrong-import-position
import libraries  # pylint: disable=wrong-import-position
import report  # pylint: disable=wrong-import-position


def rows(library, size, times, quiet=True):
    return [{"ranks": 2, "state": "near", "collective": "broadcast", "form": "out", "library": library, "bytes": size, "us": us, "quiet": quiet}
            for us in times]


def find(*lists):
    return behind.Behind(report.make_tables([row for each in lists for row in each], ["tutti", "tutti-mem", "peer", "other"]))


class Cells(unittest.TestCase):
    def test_a_quicker_peer_beyond_the_spread_counts(self):
        found = find(rows("tutti", 8, [2.0, 2.1]), rows("peer", 8, [1.0, 1.1]), rows("other", 8, [3.0]))
        self.assertEqual((found.cells, len(found.clear)), (1, 1))
        self.assertIn("1 of 1 cells are behind", found.summary())
        self.assertTrue(any("peer: 0.51" in line for line in found.lines()))

    def test_one_within_the_spread_does_not(self):
        found = find(rows("tutti", 8, [1.2, 2.6]), rows("peer", 8, [1.0, 1.1]))
        self.assertEqual((len(found.found), len(found.clear)), (1, 0))
        self.assertIn("0 of 1 cells are behind a peer beyond the spread of the run; 1 more within it, 0 were", found.summary())

    def test_a_disturbed_one_does_not(self):
        found = find(rows("tutti", 8, [2.0]), rows("peer", 8, [1.0], quiet=False))
        self.assertEqual(len(found.clear), 0)
        self.assertIn("1 were disturbed", found.summary())

    def test_where_tutti_is_ahead_nothing_counts(self):
        found = find(rows("tutti", 8, [1.0]), rows("tutti-mem", 8, [0.5]), rows("peer", 8, [1.1]), rows("tutti", 64, [1.0]))
        self.assertEqual((found.cells, found.found), (2, []))  # 64 B has no peer

    def test_the_page_lists_the_worst_first(self):
        found = find(rows("tutti", 8, [2.0]), rows("peer", 8, [1.0]), rows("tutti", 64, [9.0]), rows("peer", 64, [1.0]))
        page = list(found.page(["machine: some"], [libraries.Library("peer", "a peer", None)]))
        cells = [line for line in page if line.startswith("| broadcast")]
        self.assertIn("| 64 B | tutti | 9(1) | peer | 1(1) | 0.11 |", cells[0])
        self.assertIn("| 8 B | tutti | 2(1) | peer | 1(1) | 0.50 |", cells[1])
        self.assertIn("- `peer`: a peer", page)

    def test_the_command_names_no_place_of_this_machine(self):
        before, sys.argv = sys.argv, ["/somewhere/compare", "--out", "/tmp/here", "--ranks", "2"]
        self.addCleanup(setattr, sys, "argv", before)
        self.assertEqual(behind.command(), "bench/compare --out FOLDER --ranks 2")


if __name__ == "__main__":
    unittest.main()
