"""The executor of a Ray cluster: an actor for each GPU of any host, compilations on any CPU.

Faults of candidates never reach Ray: an actor holds an `Evaluator`, whose own process they may
crash or hang, and a task a `Compiler`. What Ray sees are lost processes and hosts. It starts them
anew, and what they were doing runs again, an evaluation on whichever GPU is idle first.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from kernels.attention.compiler import CACHE_VARIABLE, cache_folder
from kernels.attention.problem import Problem, Specialization
from tuner import extras
from tuner.evaluate import compiler, evaluator, parcels
from tuner.evaluate.compiler import Compiler
from tuner.evaluate.evaluator import Evaluator
from tuner.evaluate.executor import Compilation, Evaluation, Executor, Race
from tuner.evaluate.memory import refuse_for_memory
from tuner.evaluate.parcels import Parcel
from tuner.evaluate.ray_connection import connect, first_line
from tuner.evaluate.timing import DECIDE_S
from tuner.target import Target
from tuner.trial import Candidate, Origin, Outcome

# How often an evaluation is made whose process or host is lost.
ATTEMPTS = 3

# Seconds for actors to be placed, at the start, and for one, or a host that compiles, to come back
# when all are lost: a host may have to boot.
PLACING_S = 300.0

# Seconds between two looks at whether compilations have a host.
_LOOK_S = 1.0

# Ray's own number of further tries of a compilation whose process or host is lost.
_RETRIES = 3

_Key = tuple[Candidate, Specialization, int]


class RayExecutor(Executor):
    """Measures on the GPUs of a cluster, all of one kind."""

    origin: Origin = "cuda"

    def __init__(
        self,
        address: str | None = None,
        compile_deadline_s: float = compiler.DEADLINE_S,
        evaluate_deadline_s: float = evaluator.SILENCE_S,
        gpu_factory: str = evaluator.FACTORY,
        gpu_options: Mapping[str, Any] | None = None,
        compile_factory: str = compiler.FACTORY,
        compile_options: Mapping[str, Any] | None = None,
        placing_s: float = PLACING_S,
    ) -> None:
        """
        Args:
            address: of the cluster, as `ray.init` takes it; None: that of RAY_ADDRESS, else of this
                machine, where a cluster of it alone is made if there is none.
            compile_deadline_s, evaluate_deadline_s, gpu_factory, gpu_options, compile_factory,
                compile_options: as of `LocalExecutor`.
            placing_s: how long to wait for the actors, and for one, or a host that compiles, when
                all are lost.

        Raises:
            RuntimeError: Ray is not installed, the cluster cannot be reached, or has no GPU that
                can be used.
            ValueError: its GPUs differ, so that a figure of one says nothing of another.
        """
        self.counts_cycles = gpu_factory == evaluator.FACTORY
        self._ray = ray = _import_ray()
        self._closed = threading.Event()
        self._placing_s = placing_s
        self._actors: list[Any] = []
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._known: dict[_Key, Future[Compilation]] = {}
        self._binaries: dict[_Key, Any] = {}  # where Ray keeps them, for whichever host evaluates
        self._connected = not ray.is_initialized()
        if self._connected:
            connect(ray, address)
        self._threads: ThreadPoolExecutor | None = None
        self._watcher = threading.Thread(target=self._watch, name="ray-watch", daemon=True)
        try:
            resources = ray.cluster_resources()
            gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
            if gpus == 0:
                raise RuntimeError("the Ray cluster has no GPU")
            # As on one machine: a core for the driver of each GPU, where compilers still have some.
            self._reserved = reserved = 1 if cpus > gpus else 0
            self.evaluate_slots = gpus
            self.compile_slots = max(1, cpus - reserved * gpus)
            self._threads = ThreadPoolExecutor(gpus, thread_name_prefix="ray")
            place = ray.remote(num_gpus=1, num_cpus=reserved, max_restarts=-1)(_Actor)
            options = None if gpu_options is None else dict(gpu_options)
            self._actors += [
                place.remote(gpu_factory, options, evaluate_deadline_s) for _ in range(gpus)
            ]
            self.target = self._greet()
        except BaseException:
            self.close()
            raise
        self._task = partial(
            ray.remote(num_cpus=1, max_retries=_RETRIES, num_returns=2)(_compile).remote,
            compile_deadline_s,
            compile_factory,
            json.dumps(None if compile_options is None else dict(compile_options)),
        )
        for actor in self._actors:
            self._idle.put(actor)
        self._watcher.start()

    def announce(self) -> str:
        target = self.target
        return (
            f"Measuring on {self.evaluate_slots}× {target.gpu_name} ({target.hardware}) of a Ray "
            f"cluster, Triton {target.triton}, torch {target.torch}, driver {target.driver}."
        )

    def refuse(self, problem: Problem) -> str | None:
        return refuse_for_memory(problem, self.target.hardware.memory_gib)

    def compile(self, problem: Problem, candidate: Candidate) -> Future[Compilation]:
        key = self._key(problem, candidate)
        future = self._known.get(key)
        if future is None or (future.done() and future.exception() is not None):
            future = self._known[key] = Future()
            future.set_running_or_notify_cancel()  # it serves later problems: never cancelled
            compilation, self._binaries[key] = self._task(*key)
            done = compilation.future()
            done.add_done_callback(partial(_settle, future, candidate))
        return future

    def evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Future[Evaluation]:
        assert self._threads is not None
        return self._threads.submit(self._evaluate, problem, candidate, best_ms)

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float = DECIDE_S,
        hopefuls: Sequence[Candidate] = (),
    ) -> Future[Race]:
        assert self._threads is not None
        asked = problem, list(entrants), rounds, decide_s, list(hopefuls)
        return self._threads.submit(self._race, *asked)

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        for actor in self._actors:
            with suppress(Exception):  # the cluster may be gone
                self._ray.kill(actor)
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        if self._watcher.is_alive():
            self._watcher.join()  # it must not ask Ray once that is shut down
        if self._connected:
            self._ray.shutdown()

    def _greet(self) -> Target:
        errors = self._ray.exceptions
        try:
            greetings = [actor.hello.remote() for actor in self._actors]
            targets: list[Target] = self._ray.get(greetings, timeout=self._placing_s)
        except errors.GetTimeoutError:
            raise RuntimeError(
                f"the Ray cluster did not give {self.evaluate_slots} GPUs within "
                f"{self._placing_s:g} s: others may be using them"
            ) from None
        except errors.RayTaskError as error:
            raise RuntimeError(str(error.cause)) from None
        except errors.RayError as error:
            raise RuntimeError(f"the Ray cluster cannot be used: {first_line(error)}") from None
        for target in targets:
            if target.hardware != targets[0].hardware:
                raise ValueError(
                    f"the Ray cluster has {target.hardware} and {targets[0].hardware}; tune them "
                    "one kind at a time, each in a cluster of its own"
                )
        return targets[0]

    def _evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Evaluation:
        try:
            binaries = self._compiled(problem, [candidate])
            result: Evaluation = self._ask("evaluate", (problem, candidate, best_ms), binaries)
        except _LostError as error:
            return Evaluation(candidate, Outcome.CRASHED, str(error))
        return result

    def _race(self, *asked: Any) -> Race:
        problem, entrants, *_, hopefuls = asked
        try:
            binaries = self._compiled(problem, [*entrants, *hopefuls])
            result: Race = self._ask("race", asked, binaries)
        except _LostError as error:
            lost = f"{Outcome.CRASHED.value}: {error}"
            return Race({}, dropped=dict.fromkeys([*entrants, *hopefuls], lost))
        return result

    def _key(self, problem: Problem, candidate: Candidate) -> _Key:
        return candidate, problem.specialization, self.target.hardware.capability

    def _compiled(self, problem: Problem, candidates: Sequence[Candidate]) -> list[Any]:
        keys = [self._key(problem, candidate) for candidate in candidates]
        return [self._binaries[key] for key in keys if key in self._binaries]

    def _watch(self) -> None:
        """End compilations that have no host: Ray itself would wait for one for ever."""
        since = time.monotonic()
        while not self._closed.wait(_LOOK_S):
            waiting = [future for future in list(self._known.values()) if not future.done()]
            if not waiting or self._can_compile():
                since = time.monotonic()
            elif time.monotonic() - since >= self._placing_s:
                error = ConnectionError(
                    "no host of the Ray cluster that can compile has come back within "
                    f"{self._placing_s:g} s"
                )
                for future in waiting:
                    with suppress(InvalidStateError):  # done meanwhile
                        future.set_exception(error)

    def _can_compile(self) -> bool:
        """Whether the hosts that are left have a core beside those of the evaluators."""
        try:
            left = self._ray.cluster_resources()
        except Exception:  # whatever Ray raises where its head is lost
            return False
        evaluators = min(left.get("GPU", 0), self.evaluate_slots)
        return bool(left.get("CPU", 0) - self._reserved * evaluators >= 1)

    def _ask(self, name: str, arguments: Sequence[Any], binaries: Sequence[Any]) -> Any:
        """Have an idle actor do it, and another where that one is lost meanwhile."""
        lost: Exception | None = None
        for _ in range(ATTEMPTS):
            actor = self._take()
            try:
                result = self._ray.get(getattr(actor, name).remote(*arguments, *binaries))
            except self._ray.exceptions.RayActorError as error:
                lost = error
                self._welcome_back(actor)
                continue
            except self._ray.exceptions.ObjectLostError as error:
                lost, binaries = error, ()  # with their hosts: it compiles there, then
                self._idle.put(actor)
                continue
            except BaseException:
                self._idle.put(actor)
                raise
            self._idle.put(actor)
            return result
        raise _LostError(f"its evaluator was lost {ATTEMPTS} times: {first_line(lost)}")

    def _take(self) -> Any:
        waited = 0.0
        while not self._closed.is_set():
            with suppress(queue.Empty):
                return self._idle.get(timeout=0.5)
            waited += 0.5
            if waited >= self._placing_s:
                raise ConnectionError(
                    f"no GPU of the Ray cluster has come back within {self._placing_s:g} s"
                )
        raise ConnectionError("the executor was closed")

    def _welcome_back(self, actor: Any) -> None:
        """Let `actor` be idle again once Ray has started it anew, wherever, and it answers."""
        if self._closed.is_set():
            return

        def answered(done: Future[Target]) -> None:
            error = done.exception()
            if error is None and done.result().hardware == self.target.hardware:
                self._idle.put(actor)

        # Waits as long as it takes, which no evaluation may.
        actor.hello.options(max_task_retries=-1).remote().future().add_done_callback(answered)


class _LostError(Exception):
    """Every actor that tried was lost."""


class _Actor:
    """An evaluator on the host that Ray chose, of the GPU that Ray shows it."""

    def __init__(self, factory: str, options: Mapping[str, Any] | None, deadline_s: float) -> None:
        self._cache = cache_folder()
        told = {CACHE_VARIABLE: str(self._cache)}
        self._evaluator = Evaluator(factory, options, told, deadline_s)

    def hello(self) -> Target:
        return self._evaluator.hello()

    def pids(self) -> tuple[int, int | None]:
        """Of the actor, and of the process that owns the GPU."""
        return os.getpid(), self._evaluator.pid

    def evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None, *binaries: Parcel
    ) -> Evaluation:
        self._accept(binaries)
        return self._evaluator.evaluate(problem, candidate, best_ms)

    def race(self, problem: Problem, entrants: list[Candidate], rounds: int, decide_s: float,
             hopefuls: list[Candidate], *binaries: Parcel) -> Race:  # fmt: skip
        self._accept(binaries)
        return self._evaluator.race(problem, entrants, rounds, decide_s, hopefuls)

    def _accept(self, binaries: Sequence[Parcel]) -> None:
        for parcel in binaries:
            with suppress(OSError, ValueError):  # what is missing is compiled here
                parcels.unpack(parcel, self._cache)


def _compile(
    deadline_s: float,
    factory: str,
    options: str,
    candidate: Candidate,
    specialization: Specialization,
    capability: int,
) -> tuple[Compilation, Parcel]:
    """The task: it finds its process of Ray's with a compiler, or makes one."""
    held, folder = _compiler(deadline_s, factory, options)
    folder.mkdir(0o700)
    try:
        compilation = held.compile(candidate, specialization, capability)
        return compilation, parcels.pack(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _compiler(deadline_s: float, factory: str, options: str) -> tuple[Compiler, Path]:
    # With a folder of its own, so that what lies in it is of one compilation. It is there no longer
    # than that: Ray ends its processes without letting them clear up.
    folder = Path(tempfile.gettempdir(), f"attention-tuner-{secrets.token_hex(8)}")
    told = {CACHE_VARIABLE: str(folder)}
    made = Compiler(deadline_s, factory=factory, options=json.loads(options), environment=told)
    return made, folder


def _settle(future: Future[Compilation], candidate: Candidate, done: Future[Compilation]) -> None:
    error = done.exception()
    if error is None:
        compilation = done.result()
    else:
        reason = f"the compiler: its host was lost {_RETRIES + 1} times: {first_line(error)}"
        compilation = Compilation(candidate, Outcome.CRASHED, reason)
    with suppress(InvalidStateError):  # no host came back in time, and then one did
        future.set_result(compilation)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise RuntimeError(
            f"the executor ray needs Ray, which is not installed; {extras.command('ray')}"
        ) from None
    return ray
