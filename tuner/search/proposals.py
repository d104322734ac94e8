"""What to try next: seeds first, then what the Optuna sampler asks for, never anything twice.

The study lives in memory and is rebuilt from the trials table, which is the only truth. A repeated
or infeasible suggestion costs no trial: it is told back to the sampler at once and asked again.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kernels.attention.config import Config
from tuner.search import samplers
from tuner.search.space import SearchSpace
from tuner.trial import Candidate, Trial

if TYPE_CHECKING:
    import optuna

    from tuner.search.features import Array

# Suggestions asked in vain before one unseen candidate is drawn at random instead. On a space that
# is nearly used up a sampler would otherwise repeat itself for ever. Fewer for gp, which takes
# about a second a suggestion after a hundred trials; the surrogate does not repeat itself.
_ATTEMPTS = {"surrogate": 1, "tpe": 24, "random": 24, "gp": 3}

_SLOW = math.log(1e3)  # ms that a failure counts as before anything succeeded


class Proposals:
    """The candidates of one problem, each proposed at most once.

    Args:
        space: all that is feasible.
        sampler: a name of `samplers.NAMES`.
        seed: of the sampler.
        known: trials of earlier searches, never proposed again.
        seeds: candidates to propose first, in this order; strangers to the space are ignored.
        prior: what is thought of each candidate before the first trial, if anything.
    """

    def __init__(
        self,
        space: SearchSpace,
        sampler: str,
        seed: int,
        known: Iterable[Trial] = (),
        seeds: Iterable[Candidate] = (),
        prior: Array | None = None,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            direction="minimize", sampler=samplers.create(sampler, seed, space, prior)
        )
        self._exhaustive = sampler == "exhaustive"
        self._attempts = _ATTEMPTS.get(sampler, 0)
        self._space = space
        self._random = random.Random(seed)
        self._unseen = dict.fromkeys(space.candidates.feasible)
        self._seeds = deque(seeds)
        self._asked: dict[Candidate, optuna.trial.Trial] = {}
        self._worst: float | None = None  # largest objective of a success so far
        for trial in known:
            if trial.candidate in self._unseen:
                del self._unseen[trial.candidate]
                self._add(trial)

    @property
    def left(self) -> int:
        """How many candidates were never proposed."""
        return len(self._unseen)

    @property
    def seeded(self) -> bool:
        """Whether there are seeds left to propose."""
        while self._seeds and self._seeds[0] not in self._unseen:
            self._seeds.popleft()
        return bool(self._seeds)

    def __contains__(self, candidate: object) -> bool:
        """Whether `candidate` was never proposed."""
        return candidate in self._unseen

    def seed(self, candidates: Sequence[Candidate]) -> None:
        """Propose `candidates` before all others, in this order."""
        self._seeds.extendleft(reversed(candidates))

    def likely(self, count: int) -> list[Candidate]:
        """Up to `count` that may be proposed soon, the likeliest first; proposes none."""
        from tuner.search.surrogate import SurrogateSampler

        found = [candidate for candidate in self._seeds if candidate in self._unseen][:count]
        sampler = self._study.sampler
        if isinstance(sampler, SurrogateSampler) and len(found) < count:
            feasible = self._space.candidates.feasible
            more = sampler.outlook(self._study, count)
            found += [feasible[index] for index in more if feasible[index] in self._unseen]
        return list(dict.fromkeys(found))[:count]

    def favour(self, candidates: Iterable[Candidate], by: float) -> None:
        """Prefer `candidates`, which cost less to try than others, to those of up to `by` times
        their merit."""
        from tuner.search.surrogate import SurrogateSampler

        sampler = self._study.sampler
        if isinstance(sampler, SurrogateSampler):
            known = self._space.candidates
            sampler.favour((known.rank(c) for c in candidates if c in self._unseen), by)

    def next(self) -> Candidate | None:
        """An unseen candidate, or None when there is none left."""
        if self.seeded:
            return self._ask_for(self._seeds.popleft())
        if not self._unseen:
            return None
        if self._exhaustive:
            return self._ask_for(next(iter(self._unseen)))
        for _ in range(self._attempts):
            trial = self._study.ask()
            candidate = self._suggest(trial)
            if candidate in self._unseen:
                return self._hand_out(candidate, trial)
            self._dismiss(trial)
        return self._ask_for(self._random.choice(list(self._unseen)))

    def tell(self, trial: Trial) -> None:
        """What became of a proposed candidate."""
        asked = self._asked.pop(trial.candidate)
        if _failed(trial):
            asked.set_user_attr(samplers.FAILED, True)
        self._study.tell(asked, self._objective(trial))

    def _ask_for(self, candidate: Candidate) -> Candidate:
        self._study.enqueue_trial(self._space.parameters(candidate))
        trial = self._study.ask()
        self._suggest(trial)
        return self._hand_out(candidate, trial)

    def _hand_out(self, candidate: Candidate, trial: optuna.trial.Trial) -> Candidate:
        del self._unseen[candidate]
        self._asked[candidate] = trial
        return candidate

    def _suggest(self, trial: optuna.trial.Trial) -> Candidate:
        template = trial.suggest_categorical("template", list(self._space.choices))
        config: dict[str, Any] = {
            parameter: trial.suggest_categorical(f"{template}.{parameter}", choices)
            for parameter, choices in self._space.choices[template].items()
        }
        return Candidate(template, Config(config))

    def _dismiss(self, trial: optuna.trial.Trial) -> None:
        import optuna

        # Failed trials are invisible to samplers: nothing is learned, nothing is distorted.
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def _add(self, trial: Trial) -> None:
        import optuna

        parameters = self._space.parameters(trial.candidate)
        self._study.add_trial(
            optuna.trial.create_trial(
                params=parameters,
                distributions=self._space.distributions(trial.candidate.template),
                value=self._objective(trial),
                user_attrs={samplers.FAILED: True} if _failed(trial) else {},
            )
        )

    def _objective(self, trial: Trial) -> float:
        """Logarithm of the latency, so that a factor counts the same everywhere. What failed counts
        as twice the slowest known: bad, but not so far out that it flattens all differences."""
        if trial.measurement is None or _failed(trial):
            return _SLOW if self._worst is None else self._worst + math.log(2)
        value = math.log(trial.measurement.steady_ms)
        self._worst = value if self._worst is None else max(self._worst, value)
        return value


def _failed(trial: Trial) -> bool:
    return trial.measurement is None or not trial.outcome.timed
