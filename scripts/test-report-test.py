#!/usr/bin/env python3
"""Tests of scripts/test-report.py: what it prints of a report as cargo-nextest writes it, and how it ends.
    scripts/test-report-test.py
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).with_name("test-report.py")
FAILED = '<failure type="test failure"/>'
FAILED_AT_FIRST = '<flakyFailure type="test failure"><system-out>it was late</system-out></flakyFailure>'


def case(name, inside="", printed="", time=0.5):
    return (
        f'<testcase name="{name}" classname="keel" time="{time}">{inside}'
        f"<system-out>{printed}</system-out></testcase>"
    )


def report(*cases, states_min=()):
    """Returns the exit status and the lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "junit.xml")
        path.write_text(f'<testsuites><testsuite name="keel">{"".join(cases)}</testsuite></testsuites>')
        command = [sys.executable, PROGRAM, path, *map(str, states_min)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout.splitlines()


class Report(unittest.TestCase):
    def test_a_run_that_passes(self):
        status, lines = report(case("one"), case("two"))
        self.assertEqual((status, lines[-1]), (0, "2 passed, 0 failed, 0 skipped"))
        self.assertIn("unsteady: 0", lines)
        self.assertFalse([line for line in lines if "crash states" in line or "FAILED" in line])

    def test_three_unsteady_tests_pass_and_are_named(self):
        status, lines = report(*(case(f"late_{number}", FAILED_AT_FIRST) for number in range(3)))
        self.assertEqual((status, lines[-1]), (0, "3 passed, 0 failed, 0 skipped"))
        self.assertEqual(lines[lines.index("unsteady: 3") + 1 : -1], [f"  keel late_{number}" for number in range(3)])
        self.assertEqual(lines.count("    it was late"), 3)

    def test_four_unsteady_tests_fail_the_run(self):
        status, lines = report(*(case(f"late_{number}", FAILED_AT_FIRST) for number in range(4)))
        self.assertEqual((status, lines[-1]), (1, "4 passed, 1 failed, 0 skipped"))
        self.assertIn("FAILED: more than 3 tests are unsteady", lines)

    def test_a_skipped_test_counts_as_skipped_and_says_why(self):
        printed = "begins\nskipped: no fuse\n"
        status, lines = report(case("mounts", printed=printed), case("one"))
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertEqual(lines[0], "skipped: no fuse (keel mounts)")

    def test_a_failed_test_fails_the_run_even_if_it_said_that_it_is_skipped(self):
        status, lines = report(case("breaks", FAILED, printed="skipped: no fuse"), case("one"))
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertIn("FAILED: keel breaks", lines)

    def test_a_report_without_tests_fails(self):
        status, lines = report()
        self.assertEqual((status, lines[-1]), (1, "0 passed, 0 failed, 0 skipped"))

    def test_the_twenty_slowest_come_slowest_first(self):
        _, lines = report(*(case(f"of_{seconds}", time=seconds) for seconds in range(30)))
        begin = lines.index("slowest tests:") + 1
        names = [line.split()[-1] for line in lines[begin : lines.index("unsteady: 0")]]
        self.assertEqual(names, [f"of_{seconds}" for seconds in range(29, 9, -1)])

    def test_too_few_crash_states_fail_the_run(self):
        cases = [
            case("flash", printed="scenario: 3 states\ncrash states: 60\n"),
            # Of an unsteady test the run that passed counts.
            case("mem", FAILED_AT_FIRST.replace("it was late", "crash states: 9"), "crash states: 40"),
        ]
        for states_min, ends in [((), "0 failed"), ((100,), "0 failed"), ((101,), "1 failed")]:
            status, lines = report(*cases, states_min=states_min)
            self.assertIn("crash states: 100", lines)
            self.assertEqual((status, lines[-1]), (int(ends[0]), f"2 passed, {ends}, 0 skipped"))
        self.assertIn("FAILED: fewer than 101 crash states were judged", lines)
        # A run that explored nothing says so.
        status, lines = report(case("one"), states_min=(1,))
        self.assertIn("crash states: 0", lines)
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
