"""Measuring whole spaces, to be replayed where there is no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernels.attention.problem import Problem
from tuner.evaluate.executor import Executor
from tuner.evaluate.space_file import file_name, write_space
from tuner.record import Record
from tuner.search import driver
from tuner.search.candidates import enumerate_candidates
from tuner.search.events import Observer
from tuner.search.options import Options
from tuner.search.recollection import recalled
from tuner.store.database import Store

ROUNDS = 15


def record_spaces(
    problems: Sequence[Problem],
    executor: Executor,
    store: Store,
    folder: Path,
    templates: tuple[str, ...] | None,
    observer: Observer,
) -> list[Path]:
    """Try every feasible config of every problem, and write one file per problem and template.

    Trials go to `store` as they end: an interrupted recording goes on where it stopped. It goes on
    from a search's, too, which stopped slow ones early against the best of all templates: for
    spaces that are of use one by one, `store` should have none.

    Raises:
        StoreError: the database cannot be written.
        SpaceError, OSError: a file cannot be written.
    """
    settings = Options(sampler="exhaustive", templates=templates, rounds=ROUNDS, apart=True)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for problem in problems:
        (record,) = driver.search([problem], executor, store, [], settings, observer)
        if record is not None:
            written += write_spaces(problem, record, executor, store, folder, templates)
    return written


def write_spaces(
    problem: Problem,
    record: Record,
    executor: Executor,
    store: Store,
    folder: Path,
    templates: tuple[str, ...] | None = None,
) -> list[Path]:
    """One file per template of what `store` knows of `problem`, of which `record` is the winner.

    Raises:
        StoreError: the database cannot be read.
        SpaceError, OSError: a file cannot be written.
    """
    target = executor.target
    candidates = enumerate_candidates(problem.specialization, target.hardware.capability, templates)
    trials = recalled(problem, candidates, executor, store)
    # Once more for the samples of the peers, of which the record keeps only the median.
    race = executor.race(problem, [record.candidate], ROUNDS, decide_s=0.0).result()
    method = (
        "medians of CUDA-event rounds, and of their SM cycles, after a correctness gate against "
        "fp32; slower configs were stopped early; one process per GPU"
    )
    paths = []
    for template in dict.fromkeys(trial.candidate.template for trial in trials):
        # A driver or torch that was upgraded midway leaves trials of both: the later ones count.
        of_template = [
            trial
            for trial in trials
            if trial.candidate.template == template and trial.target == target
        ]
        path = folder / file_name(problem, template, target)
        write_space(path, of_template, race.peers, method)
        paths.append(path)
    return paths
