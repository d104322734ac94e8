"""The child's side of a worker process: JSON lines in, JSON lines out, never outliving its parent.

Requests and replies have pipes of their own, and the child's stdout goes where its stderr goes, so
that whatever a library prints cannot end up between two replies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

Handler = Callable[..., Any]

# Exit code after a FatalError. Distinct from Python's own 1 and 2.
FATAL_EXIT = 70


class FatalError(Exception):
    """Raised by a handler whose fault ruined the whole process, such as its CUDA context."""


_reply = -1


def note(text: str) -> None:
    """Tell the parent what is about to run, so that a crash or a hang can be put down to it. Starts
    the deadline anew. Outside of a worker process it does nothing."""
    if _reply >= 0:
        _send({"note": text})


def main() -> None:
    """Serve requests until the parent closes the pipe.

    Arguments by `sys.argv`: the factory (`module:function`) of the handlers, its keyword arguments
    as JSON, and the descriptors for requests, replies and the lifeline.
    """
    global _reply
    factory, options, requests, _reply, lifeline = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    for descriptor in (requests, _reply, lifeline):
        os.set_inheritable(descriptor, False)  # else a compiler we start would hold them open
    _die_with_parent(lifeline)
    # Ctrl-C reaches the parent alone, which decides what becomes of us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        handlers = _load(factory)(**json.loads(options))
    except Exception as error:
        _send({"fatal": f"{type(error).__name__}: {error}"})
        sys.exit(FATAL_EXIT)
    _send({"ready": True})
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            _answer(handlers, json.loads(line))


def _load(factory: str) -> Callable[..., Mapping[str, Handler]]:
    module, _, function = factory.partition(":")
    loaded: Callable[..., Mapping[str, Handler]] = getattr(import_module(module), function)
    return loaded


def _answer(handlers: Mapping[str, Handler], request: dict[str, Any]) -> None:
    try:
        result = handlers[request["do"]](**request["with"])
    except FatalError as error:
        _send({"fatal": str(error)})
        # Not sys.exit: its clean-up would touch the broken context and may hang there.
        os._exit(FATAL_EXIT)
    except Exception as error:
        _send({"error": f"{type(error).__name__}: {error}"})
    else:
        _send({"result": result})


def _send(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(_reply, data) :]


def _die_with_parent(lifeline: int) -> None:
    """Have our whole process group killed when the parent, however it ends, closes the lifeline.

    On Linux the kernel itself sends the signal, which works while this process hangs in native
    code, and reaches the compilers it started, which PR_SET_PDEATHSIG would orphan. The thread does
    the same elsewhere.
    """
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # sandboxes that emulate Linux may lack it
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)

    def watch() -> None:
        os.read(lifeline, 1)  # returns at end of file: nobody ever writes
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
