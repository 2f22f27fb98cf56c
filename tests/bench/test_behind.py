"""lab/peers/behind.py: which cells count as behind a peer, the page that lists them, and which are measured again."""
import argparse
import os
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "lab", "peers"))
import behind  # pylint: disable=wrong-import-position
import libraries  # pylint: disable=wrong-import-position
import report  # pylint: disable=wrong-import-position
import sweep  # pylint: disable=wrong-import-position


def rows(library, size, times, quiet=True):
    return [{"ranks": 2, "state": "near", "collective": "broadcast", "form": "out", "library": library, "bytes": size, "us": us, "quiet": quiet}
            for us in times]


def find(*lists):
    return behind.Behind(report.make_tables([row for each in lists for row in each], ["tutti", "tutti-mem", "peer", "other"]))


class Cells(unittest.TestCase):
    def test_a_time_of_nothing_is_not_a_time(self):
        self.assertEqual(sweep.timed(rows("tutti", 8, [0.0, 2.0, -1.0])), rows("tutti", 8, [2.0]))

    def test_a_quicker_peer_beyond_the_spread_counts(self):
        found = find(rows("tutti", 8, [2.0, 2.1]), rows("peer", 8, [1.0, 1.1]), rows("other", 8, [3.0]))
        self.assertEqual((found.cells, len(found.clear)), (1, 1))
        self.assertIn("1 of 1 cells are behind", found.summary())
        self.assertTrue(any("peer: 0.51" in line for line in found.lines()))

    def test_one_within_the_spread_does_not(self):
        found = find(rows("tutti", 8, [1.2, 2.6]), rows("peer", 8, [1.0, 1.1]))
        self.assertEqual((len(found.found), len(found.clear)), (1, 0))
        self.assertIn("0 of 1 cells are behind a peer beyond the spread of the run; 1 more within it, 0 were", found.summary())

    def test_one_odd_round_does_not_hide_the_others(self):
        found = find(rows("tutti", 8, [2.0, 2.1, 2.0, 9.0]), rows("peer", 8, [1.0, 1.1, 1.0, 1.1]))
        self.assertEqual(len(found.clear), 1)

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


class Confirm(unittest.TestCase):
    """Rows of two rounds, and a machine whose cores are `states` in the further rounds."""

    def run_with(self, first, states):
        known, calls = list(first), []

        def again(number, ranks, collective, sizes, names):
            calls.append((number, ranks, collective, sizes, sorted(names)))
            return [dict(row, state=states[number - 3]) for name in names for size in sizes for row in rows(name, size, [1.0])]

        def tables(known):
            return report.make_tables(known, ["tutti", "tutti-mem", "peer", "other"])

        behind.measure_again(known, tables, argparse.Namespace(rounds=2, confirm=2), again)
        return calls

    def test_only_cells_behind_are_measured_again_next_to_the_peers_ahead(self):
        first = (rows("tutti", 8, [2.0, 2.1]) + rows("peer", 8, [1.0, 1.0]) + rows("other", 8, [3.0, 3.0]) +
                 rows("tutti", 64, [1.0, 1.0]) + rows("peer", 64, [2.0, 2.0]))
        expected = [(number, 2, "broadcast", [8], ["peer", "tutti", "tutti-mem"]) for number in (3, 4)]
        self.assertEqual(self.run_with(first, ["near"] * 6), expected)

    def test_rounds_of_the_other_state_do_not_count(self):
        first = rows("tutti", 8, [2.0, 2.1]) + rows("peer", 8, [1.0, 1.0])
        self.assertEqual([call[0] for call in self.run_with(first, ["far", "near", "mixed", "near", "near", "near"])], [3, 4, 5, 6])
        self.assertEqual(len(self.run_with(first, ["far"] * 6)), 6)

    def test_nothing_is_measured_where_tutti_is_ahead(self):
        self.assertEqual(self.run_with(rows("tutti", 8, [1.0, 1.0]) + rows("peer", 8, [2.0, 2.0]), []), [])


    def test_cells_with_few_peers_in_their_state_are_measured_next_to_those_they_lack(self):
        far = [dict(row, state="far") for row in rows("peer", 8, [2.0]) + rows("other", 8, [2.0]) + rows("peer", 64, [2.0])]
        first = rows("tutti", 8, [1.0]) + rows("tutti", 64, [0.5]) + rows("peer", 64, [2.0]) + far
        found = behind.Behind(report.make_tables(first, ["tutti", "tutti-mem", "peer", "other"]))
        self.assertEqual((found.cells, found.thin), (1, 0))  # 8 B has no peer near, and is no cell
        one = first + rows("peer", 8, [2.0])
        self.assertEqual(self.run_with(one, []), [])  # half of them suffice
        calls = self.run_with(first, ["far", "near", "near", "near"])
        self.assertEqual(calls, [(number, 2, "broadcast", [8], ["other", "peer", "tutti", "tutti-mem"]) for number in (3, 4)])

    def test_thin_cells_are_counted(self):
        far = [dict(row, state="far") for name in ("peer", "other", "third") for row in rows(name, 8, [2.0])]
        tables = report.make_tables(rows("tutti", 8, [1.0]) + rows("peer", 8, [2.0]) + far, ["tutti", "peer", "other", "third"])
        self.assertIn("in 1 fewer than half of the peers", behind.Behind(tables).summary())


if __name__ == "__main__":
    unittest.main()
