"""Binaries that one host compiled serve on another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernels.attention import registry
from kernels.attention.problem import Problem
from tests.tuner.evaluate.test_faults import ptxas
from tuner.evaluate import parcels
from tuner.evaluate.compiler import Compiler
from tuner.trial import Candidate, Outcome


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_what_was_compiled_here_is_not_compiled_there(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    here, there, refusing = (tmp_path / name for name in ("here", "there", "ptxas"))
    refusing.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) exec "{ptxas()}" "$@" ;; esac\nexit 1\n'
    )
    refusing.chmod(0o755)
    problem = Problem.on_grid(64, 4096, True)
    candidate = Candidate("portable", registry.get("portable").default(problem, 90))

    def compiled(**environment: str) -> Outcome:
        compiler = Compiler(environment=environment)
        try:
            return compiler.compile(candidate, problem.specialization, 90).outcome
        finally:
            compiler.close()

    assert compiled(TRITON_CACHE_DIR=str(here)) is Outcome.OK
    parcel = parcels.pack(here)
    assert any(name.endswith(".cubin") for name in parcel)
    assert list(here.iterdir()) == []
    without_ptxas = {"TRITON_CACHE_DIR": str(there), "TRITON_PTXAS_PATH": str(refusing)}
    without_ptxas["TRITON_PTXAS_BLACKWELL_PATH"] = str(refusing)  # from Triton 3.9 on
    assert compiled(**without_ptxas) is Outcome.COMPILE_ERROR
    parcels.unpack(parcel, there)
    assert compiled(**without_ptxas) is Outcome.OK
    parcels.unpack(parcel, there)
    assert compiled(**without_ptxas) is Outcome.OK


@pytest.mark.parametrize(
    "name", ["../x/y", "/etc/x", "a/../../x", "x", "a/b/c", "a/.hidden", "", "a/"]
)
def test_a_parcel_writes_nowhere_else(tmp_path: Path, name: str) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(ValueError, match="the parcel holds"):
        parcels.unpack({"good/file": b"", name: b"evil"}, cache)
    assert not cache.exists()


def test_a_parcel_of_absurd_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "_MOST_BYTES", 10)
    with pytest.raises(ValueError, match="the parcel has more than 10 bytes"):
        parcels.unpack({"a/b": b"x" * 11}, tmp_path)
