"""Handlers for worker processes under test: they crash, hang, print; one 'GPU' is the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels.attention.config import Config
from kernels.attention.problem import Problem, Specialization
from kernels.attention.template import Binary, CompileError, OutOfResources, Resources, Template
from tuner.evaluate import compile_worker
from tuner.evaluate.child import FatalError, Handler, note
from tuner.target import Hardware, Target

TARGET = Target(Hardware(90, 132, 79, 700), "Fake H100", "3.6.0", "2.11.0", "580.0")


def misbehaving(fail_at_start: bool = False) -> Mapping[str, Handler]:
    """Every way in which a worker can go wrong."""
    if fail_at_start:
        raise RuntimeError("no such GPU")

    def hang_with_family(file: str) -> None:
        # The grandchild stands for a compiler that never ends.
        family = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(file).write_text(f"{os.getpid()} {family.pid}")
        family.wait()

    def noisy(text: str) -> str:
        print("a library says hello")
        os.write(1, b'{"result": "forged"}\n')
        os.write(2, b"and warns, without an end of line")
        return text

    def die(number: int) -> None:
        note("the culprit")
        os.write(2, b"CUDA error: something bad\n")
        os.kill(os.getpid(), number)

    def killed(marks: str, times: int) -> str:
        # As by the kernel when memory runs out.
        with Path(marks).open("a+") as file:
            file.seek(0)
            if len(file.read()) < times:
                file.write("x")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    def long(steps: int, step_s: float) -> str:
        for step in range(steps):
            note(f"step {step}")
            time.sleep(step_s)
        return "done"

    def give_up() -> None:
        raise FatalError("an illegal memory access was encountered")

    return {
        "pid": os.getpid,
        "noisy": noisy,
        "echo": lambda value: value,
        "killed": killed,
        "long": long,
        "hang": lambda: time.sleep(600),
        "hang_with_family": hang_with_family,
        "die": die,
        "abort": os.abort,
        "exit": lambda code: os._exit(code),
        "give_up": give_up,
        "fail": lambda: int("x"),
    }


class FakeTemplate(Template):
    """Does what its config's `kind` says."""

    name = "fake"
    version = "0123456789ab"  # type: ignore[assignment]

    def __init__(self) -> None:
        self.launches = 0
        self.broken = False

    def space(self, specialization: Specialization) -> Mapping[str, Any]:
        return {"kind": ("right", "slow", "wrong")}

    def reject(self, specialization: Specialization, config: Config, capability: int) -> None:
        return None

    def default(self, problem: Problem, capability: int) -> Config:
        return Config(kind="right")

    def supports(self, specialization: Specialization, capability: int) -> None:
        return None

    def compile(self, specialization: Specialization, config: Config, capability: int) -> Binary:
        kind = config["kind"]
        if kind == "compile_error":
            raise CompileError("dominance: operand #0 does not dominate this use")
        if kind == "out_of_resources":
            raise OutOfResources("shared memory, 300000 bytes of 232448")
        if kind == "compiler_bug":
            os.write(2, b"kernel.ttgir:12:3: error: 'ttg.convert_layout' op is invalid\n")
            raise RuntimeError("PassManager::run failed")
        if kind == "compiler_crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "compiler_hang":
            subprocess.run(["sleep", "600"], check=False)
        spills = int(config.get("spills", 0))
        return Binary(os.getpid(), config, specialization, lambda _: Resources(168, spills, 1024))

    def prepare(self, *arguments: Any) -> None:
        raise AssertionError("launch is overridden")

    def launch(self, binary: Binary, q, k, v, out, lse, sm_scale, causal_offset=0) -> None:  # type: ignore[no-untyped-def]
        from kernels.attention.reference import attention_reference

        kind = binary.config["kind"]
        self.launches += kind in ("flaky", "late crash")
        if kind == "crash" or (kind == "late crash" and self.launches > 9):
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hang":
            time.sleep(600)
        if kind == "illegal":
            self.broken = True
            raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
        if kind == "raises":
            raise ValueError("grid is too large")
        if kind == "unwritten":
            return
        if kind == "slow":
            time.sleep(0.02)
        result = attention_reference(q, k, v, sm_scale, binary.specialization.causal)[0]
        if kind == "wrong" or (kind == "flaky" and self.launches > 20):
            result[..., -1] += 5e-2
        if kind == "nan":
            result[..., -1, -1] = float("nan")
        out.copy_(result)

    def wait(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def compiling(log: str | None = None) -> Mapping[str, Handler]:
    """A compile worker; `log` names a file that gets a line per compilation."""
    template = FakeTemplate()

    def get(name: str) -> Template:
        if log:
            with Path(log).open("a") as file:
                file.write("compiled\n")
        return template

    return compile_worker.serve(get)


class WallStopwatch:
    """Times launches on the CPU."""

    def __init__(self) -> None:
        from tuner.evaluate.sensor import Sensor

        self.sensor = Sensor(None)

    def __call__(self, launch: Any, launches: int) -> float:
        start = time.perf_counter()
        for _ in range(min(launches, 3)):
            launch()
        return max(1e-4, (time.perf_counter() - start) * 1e3 / min(launches, 3))

    def sample(self, launch: Any, launches: int) -> Any:
        from tuner.evaluate.stopwatch import Sample

        return Sample(self(launch, launches))


def laboratory() -> Any:
    """A laboratory on the CPU, where the fake template runs."""
    from tuner.evaluate.laboratory import Laboratory
    from tuner.evaluate.peers import sdpa

    template = FakeTemplate()

    def peers(inputs: Any) -> dict[str, Any]:
        def absent() -> None:
            raise RuntimeError("no cuDNN here")

        q, k, v, causal = inputs.q, inputs.k, inputs.v, inputs.causal
        return {"fa2": lambda: sdpa(None, q, k, v, causal), "cudnn": absent}

    return Laboratory(
        "cpu", 90, WallStopwatch(), template.wait, get=lambda _: template, peer_launches=peers
    )


def gpu() -> Mapping[str, Handler]:
    """A GPU worker on the CPU."""
    from tuner.evaluate import gpu_worker

    return gpu_worker.serve(TARGET, laboratory())


def faulty_gpu() -> Mapping[str, Handler]:
    """A real GPU worker that knows one more template, whose kernels are broken."""
    import torch

    from kernels.attention import registry
    from tuner import device
    from tuner.evaluate import gpu_worker
    from tuner.evaluate.laboratory import Laboratory
    from tuner.evaluate.sensor import Sensor
    from tuner.evaluate.stopwatch import CudaStopwatch

    template = FaultyTemplate()
    target = device.detect(0)
    laboratory = Laboratory(
        "cuda",
        target.hardware.capability,
        CudaStopwatch(Sensor(device.uuid(0))),
        torch.cuda.synchronize,
        get=lambda name: template if name == "fake" else registry.get(name),
    )
    return gpu_worker.serve(target, laboratory)


class FaultyTemplate(FakeTemplate):
    """What can go wrong on a GPU."""

    def launch(self, binary: Binary, q, k, v, out, lse, sm_scale, causal_offset=0) -> None:  # type: ignore[no-untyped-def]
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        kind = binary.config["kind"]
        self.launches += 1
        if kind == "illegal" or (kind == "illegal_later" and self.launches > 10):
            import fault_kernels

            fault_kernels.write_far_away[(1,)](out)
        if kind == "assert":
            q.flatten()[torch.full((1,), 1 << 40, device=q.device)]
        if kind == "hang":
            torch.cuda._sleep(1 << 42)
        causal = binary.specialization.causal
        # Contiguous: whether SDPA reads past the end of a sequence is not what is tested.
        q, k, v = (tensor.contiguous() for tensor in (q, k, v))
        out.copy_(scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale))
        if kind == "nan":
            out[..., -1, -1] = float("nan")
        if kind == "slow":
            torch.cuda._sleep(20_000_000)


def host_killer(marks: str) -> Mapping[str, Handler]:
    """A compiler that once takes the process along that started it, as a lost host would."""

    def compile_one(**_: object) -> dict[str, object]:
        mark = Path(marks) / "killed"
        if not mark.exists():
            mark.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
        return {"outcome": "ok", "reason": "", "resources": None, "seconds": 0.1}

    return {"compile": compile_one}
