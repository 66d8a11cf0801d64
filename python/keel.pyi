"""A node's latest values, puts with tickets, and periodic tasks, for programs on the same machine.

docs/client-python.md shows how to build and use it.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Optional, Union

Value = Union[float, int, bool, str]

class Error(Exception):
    """What is wrong and what to do about it, in one line. `code` tells errors apart: "not-found", "gone", ..."""

    code: str

def attach(socket: str) -> Node:
    """Attaches to the node that serves `socket`. Where the node keeps its values in a region, they are read there.
    After a restart of the node the client attaches to it again. Starts one thread."""

class Node:
    @property
    def is_shared(self) -> bool:
        """Whether values are read where the node writes them; otherwise each read asks the node."""
    @property
    def is_live(self) -> bool:
        """Whether the node lived a tenth of a second ago; where values are not shared, whether it answers now."""
    def __getitem__(self, name: str) -> Key:
        """A key of 1 to 255 bytes. It need not exist yet."""
    def put(
        self, key: Union[str, Key], value: Value, time_ms: Optional[int] = None, *, time_ns: Optional[int] = None
    ) -> Ticket:
        """Sends a reading and does not wait for it. `time_ms` or `time_ns`: its time since 1970; without both the node's
        clock gives it. Numbers are stored as doubles; an int above 2**53 stays one."""
    def task(
        self,
        name: str,
        *,
        period: float,
        deadline: float,
        firm: bool = False,
        weight: float = 1.0,
        fifo_priority: Optional[int] = None,
        cores: Sequence[int] = (),
        stack_bytes: int = 0,
    ) -> Task:
        """A periodic task, with times in seconds. It is a loop: each turn is an instance, released on time. Of a firm one,
        what an instance puts is stored all or none, and not after its deadline."""

class Key:
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> Union[Value, bytes]:
        """The latest value."""
    def read(self) -> Reading:
        """The latest value and what is known of it."""
    def put(self, value: Value, time_ms: Optional[int] = None, *, time_ns: Optional[int] = None) -> Ticket: ...

class Reading:
    @property
    def value(self) -> Union[Value, bytes]: ...
    @property
    def time_ms(self) -> int:
        """The reading's time, ms since 1970, rounded down."""
    @property
    def time_ns(self) -> int:
        """The reading's time, ns since 1970."""
    @property
    def age_ms(self) -> int:
        """Time since then; negative for a time in the future."""
    @property
    def fresh(self) -> bool:
        """Whether the age is within `validity_ms`."""
    @property
    def validity_ms(self) -> int: ...
    @property
    def temporal(self) -> bool:
        """Whether readings are expected all the time."""
    @property
    def node_time(self) -> bool:
        """Whether the node's clock gave the time, not the sensor."""
    @property
    def clock_trusted(self) -> bool:
        """Whether that clock was trusted at arrival."""
    @property
    def this_boot(self) -> bool:
        """Whether the reading arrived since this machine started."""
    @property
    def retained(self) -> bool:
        """Whether a broker had kept it for an unknown time before it arrived."""

class Ticket:
    def poll(self) -> Optional[int]:
        """The reading's number in the log once it is on flash; None before."""
    def wait(self, timeout: float = 70.0) -> int:
        """Waits until the reading is on flash, at most `timeout` seconds; then the code is "late". The code is "shed" where
        the node has thrown the reading away, as its key's shed = "drop" says while fewer updates are admitted."""

class Task:
    """Each turn of the loop is an instance. A release that passes while one runs is skipped and counted."""

    def __iter__(self) -> Iterator[Task]: ...
    def __next__(self) -> Task:
        """Ends the instance that runs, and waits for the next release. Of a firm task: sends what it put, if in time.
        "stale" in a child after fork, as is `end`."""
    def data(self) -> Data:
        """A scope whose time counts as data time: reads of keys belong in there."""
    def put(
        self, key: Union[str, Key], value: Value, time_ms: Optional[int] = None, *, time_ns: Optional[int] = None
    ) -> Ticket:
        """`Node.put` over the task's own connection, counted as data time. In a firm task the reading is sent at the end
        of the instance, with its others in one request, and stored with all of them or not at all. Where the instance was
        late, or its puts came to the node after the deadline, the ticket says "late", and none of them is stored. After
        "io" and "gone" some of them may be; after any other code none is. "busy" here: the instance puts too much."""
    @property
    def has_missed(self) -> bool:
        """Whether the deadline of the instance that runs has passed."""
    def give_up(self) -> None:
        """Of a firm task: nothing that this instance puts is sent."""
    def end(self) -> Optional[str]:
        """Ends the instance that runs without waiting for the next: "in-time", "late", "aborted", None if none ran. What a
        firm one that is in time has put may still reach the node too late; `counts` says so."""
    @property
    def counts(self) -> dict[str, int]:
        """instances, deadline_misses, aborted, releases_missed, reports, reports_lost. An instance that the node has refused
        is among the aborted ones, and where it was late among the misses, from when its tickets end."""
    @property
    def warnings(self) -> list[str]:
        """What the machine did not permit, and the last thing that went wrong between task and node."""

class Data:
    def __enter__(self) -> Data: ...
    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None: ...
