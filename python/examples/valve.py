"""Opens a valve the further the colder a boiler is, fifty times a second, and says in the end how that went.

    python3 valve.py SOCKET [INSTANCES]
"""

import sys

import keel


def run(socket: str, instances: int) -> None:
    node = keel.attach(socket)
    celsius, valve = node["boiler/celsius"], node["boiler/valve"]
    last, misread = None, 0
    task = node.task("valve", period=0.02, deadline=0.01)
    for instance in task:
        with instance.data():
            # Read where the node writes it, without asking it.
            reading = celsius.read()
        if reading.fresh:
            # On its way at once; the ticket tells when it is on flash.
            last = instance.put(valve, min(max(100.0 - reading.value, 0.0), 100.0))
        else:
            misread += 1
        if task.counts["instances"] + 1 >= instances:
            break
    task.end()
    if last is not None:
        print(f"boiler/valve is on flash as reading {last.wait(10)}")
    counts = task.counts
    print(
        f"{counts['instances']} instances, {counts['deadline_misses']} late, "
        f"{counts['releases_missed']} releases missed, {misread} without a fresh value, "
        f"values {'shared' if node.is_shared else 'asked for'}"
    )


if __name__ == "__main__":
    try:
        run(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 50)
    except (IndexError, ValueError):
        print("valve: name the node's socket, and perhaps how often to run", file=sys.stderr)
        sys.exit(2)
    except keel.Error as error:
        sys.exit(f"valve: {error}")
