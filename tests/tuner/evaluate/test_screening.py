"""What needs too much shared memory is refused before ptxas is paid for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem
from kernels.attention.template import OutOfResources
from tests.tuner.evaluate.test_faults import ptxas
from tuner.evaluate import screening
from tuner.evaluate.compile_farm import CompileFarm
from tuner.trial import Candidate, Outcome

# Of four times the buffers that fit; the rules reject them, the farm compiles what it is told.
HUGE = {"portable": {"num_stages": 6, "BLOCK_N": 256}, "hopper": {"stages": 6}}

FAKE = """#!/bin/sh
for word; do case "$word" in *.ptx) echo called >>"{log}" ;; esac; done
exec "{real}" "$@"
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file in which a ptxas that works notes its calls."""
    pytest.importorskip("triton")
    if not ptxas().exists():
        pytest.skip("Triton brings no ptxas here")
    fake, log = tmp_path / "ptxas", tmp_path / "log"
    fake.write_text(FAKE.format(real=ptxas(), log=log), encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(fake))
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", str(fake))  # from Triton 3.9 on
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    log.touch()
    return log


@pytest.mark.parametrize("name", ["portable", "hopper"])
def test_too_much_shared_memory_never_reaches_ptxas(calls: Path, name: str) -> None:
    template = registry.get(name)
    problem = Problem.on_grid(128, 4096, True)
    fits = template.default(problem, 90)
    huge = Candidate(name, Config({**fits, **HUGE[name]}))
    farm = CompileFarm(1)
    try:
        refused = farm.submit(huge, problem.specialization, 90).result(120)
        assert refused.outcome is Outcome.OUT_OF_RESOURCES, refused.reason
        assert refused.reason.startswith("needs ")
        assert refused.reason.endswith("but a block of sm_90 has 232448")
        assert calls.read_text() == ""
        compiled = farm.submit(Candidate(name, fits), problem.specialization, 90).result(120)
        assert compiled.outcome is Outcome.OK, compiled.reason
        assert calls.read_text() == "called\n"
    finally:
        farm.close()


def test_what_fits_goes_on_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    told: list[Any] = []

    def make_ptx(self: Any, *arguments: Any) -> str:
        told.append((self, *arguments))
        return "ptx"

    monkeypatch.setattr(compiler.CUDABackend, "make_ptx", make_ptx)
    screening.install()
    screening.install()  # once is enough
    screened = compiler.CUDABackend.make_ptx
    backend = SimpleNamespace(target=SimpleNamespace(arch=86))
    fits, more = {"shared": 99 * 1024}, {"shared": 99 * 1024 + 1}
    assert screened(backend, "llir", fits, "options", 86) == "ptx"
    assert told == [(backend, "llir", fits, "options", 86)]
    with pytest.raises(OutOfResources, match="needs 101377 bytes of shared memory"):
        screened(backend, "llir", more, "options", 86)
    assert len(told) == 1
