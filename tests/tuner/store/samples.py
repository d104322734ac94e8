"""Records and trials for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from kernels.attention.template import Resources
from tuner.record import Record, Rival
from tuner.target import Hardware, Target
from tuner.trial import Candidate, Measurement, Outcome, Trial

PROBLEM = Problem.on_grid(128, 8192, True)
HARDWARE = Hardware(capability=90, sm_count=132, memory_gib=80, power_limit_w=700)
TARGET = Target(HARDWARE, "NVIDIA H100 80GB HBM3", "3.6.0", "2.11.0", "580.65.06")


def candidate(number: int = 0) -> Candidate:
    return Candidate("portable", Config(BLOCK_M=128, defer=True, order="heads", number=number))


def measurement(median_ms: float = 1.25) -> Measurement:
    return Measurement(
        median_ms=median_ms,
        spread=0.1 + 0.2,  # whose shortest decimal is long
        samples_ms=(median_ms, 1 / 3, 5e-324, 1.7976931348623157e308),
        tflops=612.5,
        max_diff=1e-3,
        sm_clock_mhz=1755,
        power_w=698,
    )


def record(number: int = 0, median_ms: float = 1.25, **changes: Any) -> Record:
    """A full record; those of other numbers are other records."""
    made = Record(
        problem=PROBLEM,
        target=TARGET,
        candidate=candidate(number),
        template_version="0123456789ab",
        measurement=measurement(median_ms),
        origin="cuda",
        measured_at="2024-11-28T12:00:00+00:00",
        default_ms=1.5,
        margin=0.02,
        rivals=(Rival("portable(BLOCK_M=64)", 1.3, 0.01),),
        peers=(Rival("cudnn", 1.4, 0.02), Rival("flash", 2.4, 0.02)),
        tied=("portable(BLOCK_M=64)",),
        note="kept the default: nothing was faster beyond the noise",
        supersedes=("0" * 16,),
    )
    return replace(made, **changes, uid="")


def bare_record(number: int = 0, median_ms: float = 1.25, **changes: Any) -> Record:
    """A record with nothing optional."""
    plain = Measurement(median_ms, 0.0, (median_ms,), 100.0, 0.0)
    return Record(
        **{
            "problem": PROBLEM,
            "target": TARGET,
            "candidate": candidate(number),
            "template_version": "0123456789ab",
            "measurement": plain,
            "origin": "cuda",
            "measured_at": "2024-11-28T12:00:00+00:00",
            **changes,
        }
    )


def trial(number: int = 0, **changes: Any) -> Trial:
    """A trial that went well."""
    made = Trial(
        problem=PROBLEM,
        target=TARGET,
        candidate=candidate(number),
        template_version="0123456789ab",
        outcome=Outcome.OK,
        origin="cuda",
        measured_at="2024-11-28T12:00:00+00:00",
        measurement=measurement(),
        resources=Resources(registers=168, spills=0, shared_memory=163840),
        compile_s=0.75,
        evaluate_s=0.25,
    )
    return replace(made, **changes)
