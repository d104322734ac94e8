"""A long-lived worker process with a deadline for its answers, in a process group of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

# How long a worker may take to import what it needs and, on a GPU, to create its context.
START_S = 180.0

# How often a request is made whose worker is killed by others.
ATTEMPTS = 3

# The parent's own import path goes along, so that the child finds what the parent found, from a
# checkout, a test or a wheel alike.
_BOOT = """\
import sys
at = sys.argv.index("--")
sys.path[:], sys.argv[at:] = sys.argv[at + 1 :], []
from tuner.evaluate.child import main
main()
"""


class WorkerError(Exception):
    """A request that did not come back.

    Attributes:
        note: what the worker said last about what it was running, or None.
    """

    def __init__(self, reason: str, note: str | None = None) -> None:
        super().__init__(reason)
        self.note = note


class Timeout(WorkerError):  # noqa: N818 – named after the outcome it becomes
    """The deadline passed; the worker and all it had started were killed."""


class Crashed(WorkerError):  # noqa: N818
    """The worker died, or gave itself up because its state was ruined.

    Attributes:
        killed: by SIGKILL, and not by us: an operator's or the kernel's when memory ran out. What
            the worker was running need not be to blame.
    """

    def __init__(self, reason: str, note: str | None = None, killed: bool = False) -> None:
        super().__init__(reason, note)
        self.killed = killed


class HandlerError(Exception):
    """A handler raised something it does not handle itself; the worker lives on."""


class Worker:
    """One child process, started at the first request and again after each death.

    A request blocks its caller; use one thread per worker. `close` may come from any thread.
    """

    def __init__(
        self,
        factory: str,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            factory: `module:function` that returns the child's handlers by name.
            options: keyword arguments of the factory.
            environment: variables to set in the child on top of ours.
        """
        self._factory = factory
        self._options = json.dumps(dict(options or {}))
        self._environment = {**os.environ, **(environment or {})}
        self._lock = threading.Lock()
        self._closed = False
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """Process id, and group, of the running child; None before a start and after a death."""
        return self._child.process.pid if self._child else None

    def start(self) -> None:
        """Start the child, unless it runs.

        Raises:
            Timeout, Crashed: it did not get ready.
        """
        with self._lock:
            if self._closed:
                raise Crashed("the worker was closed")
            try:
                self._child = self._child or self._start()
            except BaseException:
                self._drop()
                raise

    def request(self, name: str, arguments: Mapping[str, Any], deadline_s: float) -> Any:
        """Call the handler `name` in the child, which is started first if it is not running.

        Args:
            deadline_s: seconds the child may be silent: until its reply, or its next note.

        Raises:
            Timeout, Crashed: the child is gone, and its process group with it.
            HandlerError: the handler raised.
        """
        with self._lock:
            if self._closed:
                raise Crashed("the worker was closed")
            try:
                child = self._child or self._start()
                child.send({"do": name, "with": dict(arguments)})
                reply = child.reply(deadline_s)
            except WorkerError:
                self._drop()
                if self._closed:
                    raise Crashed("the worker was closed") from None
                raise
            except BaseException:  # Ctrl-C between request and reply: they no longer match
                self._drop()
                raise
            if "error" in reply:
                raise HandlerError(reply["error"])
            return reply["result"]

    def persist(self, name: str, arguments: Mapping[str, Any], deadline_s: float) -> Any:
        """As `request`, but again, at most `ATTEMPTS` times in all, if somebody else killed the
        child: what it ran need not be to blame, and if it is, it will be every time."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self.request(name, arguments, deadline_s)
            except Crashed as error:
                if not error.killed:
                    raise
        return self.request(name, arguments, deadline_s)

    def close(self) -> None:
        """Kill the child and all it started. Safe to call twice, and during a request."""
        self._closed = True
        child = self._child
        if child:
            child.kill()
        with self._lock:
            self._drop()

    def _start(self) -> _Child:
        child = _Child(self._factory, self._options, self._environment)
        self._child = child
        if self._closed:
            raise Crashed("the worker was closed")
        child.reply(START_S)
        return child

    def _drop(self) -> None:
        if self._child:
            self._child.end()
            self._child = None


class _Child:
    """One life of a worker: the process, its pipes, and the last lines it printed."""

    def __init__(self, factory: str, options: str, environment: Mapping[str, str]) -> None:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        lifeline, self._lifeline = os.pipe()
        theirs = (requests, replies, lifeline)
        path = [entry or str(Path.cwd()) for entry in sys.path]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, factory, options, *map(str, theirs), "--", *path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=theirs,
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            self._close(self._requests, self._replies, self._lifeline)
            raise
        finally:
            self._close(*theirs)
        self._buffer = b""
        self._printed: deque[str] = deque(maxlen=20)
        assert self.process.stdout is not None
        self._drain = threading.Thread(
            target=self._listen, args=(self.process.stdout,), name="worker output", daemon=True
        )
        self._drain.start()

    def send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            raise self._epitaph(None) from None

    def reply(self, deadline_s: float) -> dict[str, Any]:
        """The next message that is no note."""
        note: str | None = None
        while True:
            try:
                message: dict[str, Any] = json.loads(self._line(time.monotonic() + deadline_s))
            except TimeoutError:
                self.kill()
                raise Timeout(f"no answer within {deadline_s:g} s", note) from None
            except EOFError:
                raise self._epitaph(note) from None
            if "fatal" in message:
                raise Crashed(message["fatal"], note)
            if "note" not in message:
                return message
            note = message["note"]

    def kill(self) -> None:
        """Kill the group. Only before the child is reaped: until then its id is nobody else's."""
        if self.process.returncode is None:
            # The whole group may be gone, or (macOS) consist of zombies.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        # A process inside the GPU driver can take a while to go; it is dead to us either way.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=3.0)
        self._close(self._requests, self._replies, self._lifeline)

    def _line(self, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _epitaph(self, note: str | None) -> Crashed:
        self.kill()  # what it started may still hold its output open
        try:
            code = self.process.wait(timeout=3.0)
        except subprocess.TimeoutExpired:
            return Crashed("died, and does not go away", note)
        self._drain.join(timeout=0.5)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        last = next((line for line in reversed(self._printed) if line), "")
        return Crashed(f"{how}: {last}" if last else how, note, killed=code == -signal.SIGKILL)

    def _listen(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._printed.append(line.decode(errors="replace").strip()[:500])

    @staticmethod
    def _close(*descriptors: int) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
