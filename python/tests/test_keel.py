"""The package against a node: python3 test_keel.py KEEL_PROGRAM. The last line is the total."""

import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

import keel

PROGRAM = os.path.abspath(sys.argv[1])
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "valve.py"
CONFIG = """
[store]
create_mebibytes = 16
[line]
tcp_listen = ""
unix_socket = "line.sock"
[[key]]
pattern = "#"
validity_ms = 600000
"""


class Place:
    """A folder with a node in it."""

    def __init__(self, is_shared):
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = tempfile.mkdtemp(prefix="keel-python-", dir=memory)
        self.socket = os.path.join(self.folder, "keel-data", "keel.sock")
        region = f'[region]\nfile = "{self.folder}/region"\ncreate_mebibytes = 32\n'
        with open(os.path.join(self.folder, "keel.toml"), "w") as file:
            file.write(CONFIG + (region if is_shared else ""))
        self.child = None
        self.start()

    def start(self):
        path = pathlib.Path(self.folder, "log")
        with path.open("w") as log:
            self.child = subprocess.Popen(
                [PROGRAM, "run", "-c", "keel.toml"], cwd=self.folder, stdin=subprocess.DEVNULL, stderr=log
            )
        wait_until(lambda: " ready: " in path.read_text())

    def kill(self):
        self.child.kill()
        self.child.wait()

    def remove(self):
        self.kill()
        shutil.rmtree(self.folder)


def wait_until(done):
    """An end, and no measurement."""
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


def code_of(call):
    try:
        call()
    except keel.Error as error:
        assert "\n" not in str(error)
        return error.code
    return None


class Shared(unittest.TestCase):
    is_shared = True

    @classmethod
    def setUpClass(cls):
        cls.place = Place(cls.is_shared)
        cls.node = keel.attach(cls.place.socket)

    @classmethod
    def tearDownClass(cls):
        cls.place.remove()

    def test_values_come_back_with_their_type(self):
        self.assertEqual(self.node.is_shared, self.is_shared)
        self.assertTrue(self.node.is_live)
        for value in [21.5, -1e300, True, False, "", "open", "\u00e4\n", 0.1]:
            before = int(time.time() * 1000)
            number = self.node.put("a/b", value).wait()
            self.assertGreaterEqual(number, 0)
            found = self.node["a/b"].value
            self.assertEqual((found, type(found)), (value, type(value)))
            reading = self.node["a/b"].read()
            self.assertEqual(reading.value, value)
            self.assertTrue(reading.fresh and reading.node_time and reading.this_boot)
            self.assertGreaterEqual(reading.time_ms, before - 1)
            self.assertEqual(reading.validity_ms, 600000)
        # A number that a double holds becomes one; any other keeps each digit.
        key = self.node["a/b"]
        for number in [2**53, -(2**53)]:
            key.put(number).wait()
            self.assertEqual((key.value, type(key.value)), (float(number), float))
        for number in [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64 - 1]:
            key.put(number).wait()
            self.assertEqual((key.value, type(key.value)), (number, int))
        key.put(7).wait()
        self.assertEqual((key.value, type(key.value), key.name), (7.0, float, "a/b"))
        # The next ms: the value before has a time that is no whole ms.
        now = int(time.time() * 1000) + 1
        key.put(8.0, time_ms=now).wait()
        reading = key.read()
        self.assertEqual((reading.time_ms, reading.time_ns), (now, now * 1000000))

    def test_a_time_comes_back_to_the_nanosecond(self):
        exact = 1700000000123456789
        key = self.node["exact"]
        task = self.node.task("exact", period=0.005, deadline=60)
        next(task)
        puts = [
            lambda value, ns: key.put(value, time_ns=ns),
            lambda value, ns: self.node.put("exact", value, time_ns=ns),
            lambda value, ns: task.put(key, value, time_ns=ns),
        ]
        for number, put in enumerate(puts):
            put(float(number), exact + number).wait()
            reading = key.read()
            self.assertEqual((reading.value, reading.time_ns), (number, exact + number))
            self.assertEqual(reading.time_ms, 1700000000123)
            self.assertFalse(reading.node_time)
        for call in [key.put, lambda value, **at: self.node.put("exact", value, **at)]:
            self.assertRaises(ValueError, call, 1.0, time_ms=5, time_ns=5)
        self.assertRaises(ValueError, task.put, key, 1.0, time_ms=5, time_ns=5)
        self.assertEqual(task.end(), "in-time")

    def test_keys_have_255_bytes_at_most(self):
        longest = "k" * 254
        for number, last in enumerate(["a", "b"]):
            self.node.put(longest + last, number).wait()
        for number, last in enumerate(["a", "b"]):
            self.assertEqual(self.node[longest + last].value, number)
        self.assertEqual(code_of(lambda: self.node[longest + "ab"]), "invalid")

    def test_what_is_wrong_has_a_code(self):
        self.assertEqual(code_of(lambda: self.node["no/such"].value), "not-found")
        self.assertEqual(code_of(lambda: self.node[""]), "invalid")
        self.assertEqual(code_of(lambda: self.node.put("a", math.nan)), "invalid")
        for number in [2**64, -(2**63) - 1]:
            self.assertRaises(OverflowError, self.node.put, "a", number)
        self.assertRaises(TypeError, self.node.put, "a", [])
        self.assertRaises(TypeError, self.node.put, 5, 5)
        ticket = self.node.put("a", 1.0, time_ms=-5)
        self.assertEqual(code_of(ticket.wait), "invalid")
        self.assertEqual(code_of(ticket.poll), "invalid")
        self.assertEqual(code_of(lambda: keel.attach("/nonexistent/keel.sock")), "not-found")
        self.assertRaises(ValueError, self.node.task, "t", period=-1.0, deadline=1.0)
        self.assertEqual(code_of(lambda: self.node.task("", period=1, deadline=1)), "invalid")

    def test_a_task_is_a_loop(self):
        task = self.node.task("loop", period=0.005, deadline=5, weight=2.0)
        tickets = []
        for instance in task:
            with instance.data():
                pass
            tickets.append(instance.put("loop/count", len(tickets)))
            self.assertFalse(instance.has_missed)
            if len(tickets) == 5:
                break
        self.assertEqual(task.end(), "in-time")
        self.assertIsNone(task.end())
        numbers = [ticket.wait() for ticket in tickets]
        self.assertEqual(numbers, sorted(numbers))
        self.assertEqual(self.node["loop/count"].value, 4)
        counts = task.counts
        self.assertEqual((counts["instances"], counts["deadline_misses"], counts["aborted"]), (5, 0, 0))

    def test_a_firm_instance_that_gives_up_is_never_seen(self):
        self.node.put("firm", 1.0).wait()
        task = self.node.task("firm", period=0.005, deadline=5, firm=True)
        next(task)
        ticket = task.put("firm", 2.0)
        self.assertIsNone(ticket.poll())
        task.give_up()
        self.assertEqual(task.end(), "aborted")
        self.assertEqual(code_of(ticket.poll), "late")
        next(task)
        ticket = task.put("firm", 3.0)
        self.assertEqual(task.end(), "in-time")
        ticket.wait()
        self.assertEqual(self.node["firm"].value, 3.0)

    def test_a_firm_instance_that_the_node_takes_too_late_is_never_seen(self):
        keys = [self.node["late/one"], self.node["late/two"]]
        task = self.node.task("late", period=1.5, deadline=1.0, firm=True)

        def run(value):
            """Again where this machine was too slow for its deadline."""
            for _ in range(20):
                next(task)
                tickets = [task.put(key, value) for key in keys]
                if task.end() == "in-time":
                    return tickets
            self.fail("no instance is in time")

        wait_until(lambda: all(code_of(ticket.wait) is None for ticket in run(1.0)))
        process = self.place.child
        process.send_signal(signal.SIGSTOP)
        try:
            tickets = run(2.0)
            before = task.counts
            time.sleep(1.0)
        finally:
            process.send_signal(signal.SIGCONT)
        for ticket in tickets:
            with self.assertRaisesRegex(keel.Error, "the deadline has passed: nothing was stored"):
                ticket.wait()
            self.assertEqual(code_of(ticket.poll), "late")
        after = task.counts
        for name in ("deadline_misses", "aborted"):
            self.assertEqual(after[name], before[name] + 1)
        self.assertEqual(after["instances"], before["instances"])
        self.assertEqual([key.value for key in keys], [1.0, 1.0])

    def test_a_child_after_fork_is_refused_the_task_of_its_parent(self):
        task = self.node.task("forking", period=0.005, deadline=5)
        next(task)
        with warnings.catch_warnings():
            # A process with threads is told that its child may wait for a lock for ever: this one takes none.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            calls = [lambda: next(task), task.end, lambda: task.put("forked", 1.0)]
            os._exit(0 if [code_of(call) for call in calls] == ["stale"] * 3 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(task.end(), "in-time")
        next(task)

    def test_waiting_sees_signals_and_lets_others_run(self):
        task = self.node.task("slow", period=600, deadline=600)
        next(task)
        # Whoever runs this in the background has it switched off.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        # That this thread runs at all shows that the waiting one lets it.
        main = threading.main_thread().ident
        killer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        killer.start()
        self.assertRaises(KeyboardInterrupt, next, task)
        killer.join()
        signal.signal(signal.SIGINT, before)

    def test_the_example_runs(self):
        self.node.put("boiler/celsius", 60.0).wait()
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), self.place.socket, "10"], capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("boiler/valve is on flash as reading ", done.stdout)
        self.assertIn("10 instances, ", done.stdout)
        self.assertIn("values shared" if self.is_shared else "values asked for", done.stdout)
        self.assertEqual(self.node["boiler/valve"].value, 40.0)

    def test_the_example_says_what_is_wrong(self):
        cases = [
            ([], 2, "name the node's socket"),
            (["nowhere/keel.sock", "many"], 2, "name the node's socket"),
            (["nowhere/keel.sock"], 1, "no connection to the node"),
        ]
        for more, status, said in cases:
            done = subprocess.run([sys.executable, str(EXAMPLE), *more], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (status, "", 1))
            self.assertIn(said, done.stderr)


class Asked(Shared):
    is_shared = False


class Restart(unittest.TestCase):
    def test_a_node_that_was_killed_is_found_again(self):
        place = Place(True)
        try:
            node = keel.attach(place.socket)
            key = node["a"]
            key.put(1.0).wait()
            self.assertEqual(key.value, 1.0)
            place.kill()
            wait_until(lambda: code_of(lambda: key.value) == "gone")
            self.assertFalse(node.is_live)
            place.start()
            wait_until(lambda: code_of(lambda: key.value) is None)
            self.assertEqual(key.value, 1.0)
            key.put(2.0).wait()
            self.assertEqual(key.value, 2.0)
        finally:
            place.remove()


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    bad = len(result.failures) + len(result.errors)
    skipped = len(result.skipped)
    print(f"{result.testsRun - bad - skipped} passed, {bad} failed, {skipped} skipped")
    sys.exit(bad > 0)
