"""What a standalone file knows: the best record of each problem, and all defaults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernels.attention import registry
from kernels.attention.capability import supported
from kernels.attention.problem import HEADDIMS, Problem, Specialization
from tuner import resolve
from tuner.liveness import revived
from tuner.record import Record
from tuner.standalone.forms import Form
from tuner.standalone.literals import call, listing, mapping
from tuner.target import Target
from tuner.trial import Candidate

_LONGEST = 2**24  # seqlens up to which defaults are asked for
_RANKS = {"exact": 1, "stale": 2, "family": 3}


@dataclass(frozen=True, order=True)
class _Entry:
    """What the file says of one problem; the least is the best."""

    rank: int
    ms: float
    uid: str
    record: Record = field(compare=False)


class Contents:
    """The tables of a file for one target.

    Args:
        records: those that stand.
        forms: the templates that the file holds, preferred first.
    """

    def __init__(self, records: Iterable[Record], target: Target, forms: Sequence[Form]) -> None:
        self._forms = {form.template: form for form in forms}
        self._entries = self._best(records, target)

    @property
    def used(self) -> list[Record]:
        """The records that are in the file."""
        return [entry.record for entry in self._entries]

    def records(self) -> str:
        rows: dict[Specialization, list[str]] = {}
        for entry in self._entries:
            problem = entry.record.problem
            numbers = (entry.rank, problem.seqlen, problem.batch, problem.heads)
            config = self._write(revived(entry.record.candidate))
            row = call("Record", [*map(str, numbers), config], 8)
            rows.setdefault(problem.specialization, []).append(row)
        shelves = {
            f'({of.headdim}, {of.causal}, "{of.dtype}")': listing(shelf, 4)
            for of, shelf in rows.items()
        }
        return mapping(shelves, 0)

    def defaults(self) -> str:
        """Every default, probed: capabilities that agree share a table."""
        tables: dict[str, list[int]] = {}
        for capability in supported():
            table = {}
            for headdim in HEADDIMS:
                for causal in (False, True):
                    rows = [
                        f"{' ' * 12}Default({most}, {self._write(candidate)})"
                        for most, candidate in self._by_seqlen(headdim, causal, capability)
                    ]
                    table[f"({headdim}, {causal})"] = listing(rows, 8)
            tables.setdefault(mapping(table, 4), []).append(capability)
        return mapping({_key(agree): table for table, agree in tables.items()}, 0)

    def _best(self, records: Iterable[Record], target: Target) -> list[_Entry]:
        """The best entry for each problem: by headdim, mask and dtype, then as `resolve` prefers
        them where they are equally near."""
        best: dict[Problem, _Entry] = {}
        for record in records:
            if record.candidate.template not in self._forms:
                continue
            if record.target.hardware.capability != target.hardware.capability:
                continue
            # A record that may not launch is none to `resolve` either.
            try:
                rank = _RANKS.get(resolve.resolve([record], target, record.problem).source)
            except LookupError:  # of a headdim that no template serves
                continue
            if rank is not None:
                entry = _Entry(rank, record.measurement.median_ms, record.uid, record)
                known = best.get(record.problem)
                best[record.problem] = entry if known is None else min(entry, known)

        def order(entry: _Entry) -> tuple[object, ...]:
            problem = entry.record.problem
            return problem.specialization, entry.ms / problem.flops, entry.uid

        return sorted(best.values(), key=order)

    def _by_seqlen(
        self, headdim: int, causal: bool, capability: int
    ) -> list[tuple[int | None, Candidate]]:
        """The defaults of growing seqlens, each with the last one that it is for."""
        some = Problem.on_grid(headdim, 1, causal).specialization
        template = next(
            template
            for template in map(registry.get, self._forms)
            if template.supports(some, capability) is None
        )

        def default(seqlen: int) -> Candidate:
            problem = Problem.on_grid(headdim, seqlen, causal)
            return Candidate(template.name, template.default(problem, capability))

        found: list[tuple[int | None, Candidate]] = []
        low = 1
        while low < _LONGEST:
            high = 2 * low
            if default(low) == default(high):
                low = high
                continue
            before, last = default(low), high
            while last - low > 1:  # the last one that is served as low is
                middle = (low + last) // 2
                low, last = (middle, last) if default(middle) == before else (low, middle)
            found.append((low, before))
            low = last
        return [*found, (None, default(_LONGEST))]

    def _write(self, candidate: Candidate) -> str:
        return self._forms[candidate.template].write(candidate.config)


def _key(capabilities: Sequence[int]) -> str:
    return f"({capabilities[0]},)" if len(capabilities) == 1 else str(tuple(capabilities))
