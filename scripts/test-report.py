#!/usr/bin/env python3
"""What a run of the tests came to, from the report that cargo-nextest writes (JUnit): the tests that could not run, the
unsteady ones, the slowest ones, and the total as the last line:
    N passed, N failed, N skipped
A test that printed `skipped: REASON` counts as skipped. A test that failed and then passed is unsteady; more than
UNSTEADY_MAX of them are a failure of the run. Tests of crashes print `crash states: N`; if the sum of a run that passes
otherwise is below CRASH_STATES_MIN, that is a failure, too. The exit status is 0 when the run passes.
    scripts/test-report.py JUNIT.XML [CRASH_STATES_MIN]
"""

import re
import sys
import xml.etree.ElementTree as xml

UNSTEADY_MAX = 3
SLOWEST = 20
OUTPUT_LINES_MAX = 60
CRASH_STATES = re.compile(r"^crash states: (\d+)$", re.MULTILINE)


def output(element):
    """What a run of a test printed."""
    parts = [element.findtext(tag) or "" for tag in ("system-out", "system-err")]
    return "\n".join(part for part in parts if part.strip())


def indented(text):
    lines = text.splitlines()
    cut = len(lines) - OUTPUT_LINES_MAX
    if cut > 0:
        lines = [f"({cut} lines left out)", *lines[cut:]]
    return "\n".join(f"    {line}" for line in lines)


def main(path, states_min=0):
    cases = list(xml.parse(path).getroot().iter("testcase"))
    failed, unsteady, skipped = [], [], []
    states = 0
    for case in cases:
        name = f"{case.get('classname')} {case.get('name')}"
        first = next((part for part in case if part.tag in ("flakyFailure", "flakyError")), None)
        reasons = [line for line in output(case).splitlines() if line.startswith("skipped: ")]
        states += sum(int(number) for number in CRASH_STATES.findall(output(case)))
        if any(part.tag in ("failure", "error") for part in case):
            failed.append(name)
        elif first is not None:
            unsteady.append((name, output(first)))
        elif reasons:
            skipped.append((name, reasons[0]))
    for name, reason in skipped:
        print(f"{reason} ({name})")
    print("\nslowest tests:")
    for case in sorted(cases, key=lambda case: -float(case.get("time")))[:SLOWEST]:
        print(f"{float(case.get('time')):8.1f} s  {case.get('classname')} {case.get('name')}")
    if states or states_min:
        print(f"crash states: {states}")
    for name in failed:
        print(f"FAILED: {name}")
    for name, text in unsteady:
        print(f"unsteady: {name} failed at first; what it printed then:\n{indented(text)}")
    print(f"unsteady: {len(unsteady)}")
    for name, _ in unsteady:
        print(f"  {name}")
    too_many = len(unsteady) > UNSTEADY_MAX
    if too_many:
        print(f"FAILED: more than {UNSTEADY_MAX} tests are unsteady")
    # A test that failed has not said how many it judged.
    too_few = states < states_min and not failed
    if too_few:
        print(f"FAILED: fewer than {states_min} crash states were judged")
    passed = len(cases) - len(failed) - len(skipped)
    print(f"{passed} passed, {len(failed) + too_many + too_few} failed, {len(skipped)} skipped")
    return 1 if failed or too_many or too_few or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:3])))
