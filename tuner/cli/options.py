"""Options that several commands share: how they are declared, and how their text is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from kernels.attention.printable import shown
from kernels.attention.problem import DTYPES, GRID_SEQLENS, HEADDIMS, Problem
from tuner.cli.failure import CommandError

_MOST_DIGITS = 15  # more than any of these numbers needs, and a float holds each exactly
_GREATEST_SEED = 2**32 - 1


def whole_number(value: str | int) -> int:
    """A number of at least 1, as Typer's parser of an option, which it also gives the default."""
    number = _number(str(value))
    if number is None or number < 1:
        raise typer.BadParameter(
            f"{shown(str(value))} is not a whole number of at least 1 and {_MOST_DIGITS} digits "
            "at most"
        )
    return number


def path(value: str | Path) -> Path:
    """A path, as Typer's parser of an option, which it also gives the default: of the empty name,
    which a script passes for a variable that is not set, Python would make the folder at hand."""
    if value == "":
        raise typer.BadParameter("'' is not the name of a file or folder")
    return Path(value)


def seed(text: str) -> int:
    """The value of `--seed`, which numpy's generators take 32 bits of."""
    number = _number(text)
    if number is None or number > _GREATEST_SEED:
        raise CommandError(
            f"--seed is {shown(text)}, but must be a whole number from 0 to {_GREATEST_SEED}"
        )
    return number


def _number(text: str) -> int | None:
    fits = re.fullmatch(rf"\s*[0-9]{{1,{_MOST_DIGITS}}}\s*", text)
    return int(text) if fits else None


FLAG = ""  # the metavar of an option that takes no value: Typer would print <bool>

Hdim = Annotated[
    list[str] | None,
    typer.Option("--hdim", metavar="N", help="Head dimension; repeat, or separate by commas."),
]
NeededHdim = Annotated[
    list[str] | None,
    typer.Option(
        "--hdim", metavar="N", help="Head dimension, required; repeat, or separate by commas."
    ),
]
Seqlen = Annotated[
    list[str] | None,
    typer.Option("--seqlen", metavar="N", help="Sequence length; repeat, or separate by commas."),
]
NeededSeqlen = Annotated[
    list[str] | None,
    typer.Option(
        "--seqlen", metavar="N", help="Sequence length, required; repeat, or separate by commas."
    ),
]
Causal = Annotated[
    bool | None,
    typer.Option(
        "--causal/--no-causal",
        metavar=FLAG,
        help="Only causal or only full; both if not given.",
    ),
]
Dtype = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="|".join(DTYPES),
        help="Data type; repeat, or separate by commas; fp16 if not given.",
    ),
]
OnlyDtype = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="|".join(DTYPES),
        help="Only of this data type; repeat, or separate by commas.",
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        metavar="N",
        parser=whole_number,
        help="Batch size; 16384 tokens in all if not given.",
    ),
]
Heads = Annotated[
    int | None,
    typer.Option(
        "--heads",
        metavar="N",
        parser=whole_number,
        help="Number of heads; hidden size 2048 if not given.",
    ),
]
OnlyBatch = Annotated[
    int | None,
    typer.Option("--batch", metavar="N", parser=whole_number, help="Only of this batch size."),
]
OnlyHeads = Annotated[
    int | None,
    typer.Option("--heads", metavar="N", parser=whole_number, help="Only of so many heads."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", parser=whole_number, help="Compilers at once; by default by cores."
    ),
]
Template = Annotated[
    list[str] | None,
    typer.Option(
        "--template", metavar="NAME", help="Only this template; repeat, or separate by commas."
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--db", metavar="FILE|URL", help="Your database; $TUNER_DB, else in your data folder."
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="sm_90, part of a GPU's name, or a hardware key; else the GPU here, else that of the "
        "records.",
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print JSON for programs.")]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="all|N,M",
        help="GPUs of this machine to measure on, each by itself; the first if not given.",
    ),
]
Spaces = Annotated[
    Path | None,
    typer.Option(
        "--spaces", metavar="DIR", parser=path, help="Folder of recorded spaces to replay."
    ),
]


@dataclass(frozen=True)
class Shapes:
    """The shape options of one command line; None where one was not given."""

    headdims: tuple[int, ...] | None
    seqlens: tuple[int, ...] | None
    causal: bool | None
    dtypes: tuple[str, ...] | None
    batch: int | None
    heads: int | None

    def matches(self, problem: Problem) -> bool:
        """Whether `problem` is among what was asked for."""
        return (
            (self.headdims is None or problem.headdim in self.headdims)
            and (self.seqlens is None or problem.seqlen in self.seqlens)
            and (self.causal is None or problem.causal == self.causal)
            and (self.dtypes is None or problem.dtype in self.dtypes)
            and (self.batch is None or problem.batch == self.batch)
            and (self.heads is None or problem.heads == self.heads)
        )

    @property
    def masks(self) -> tuple[bool, ...]:
        """Causal and full, if neither was asked for."""
        return (True, False) if self.causal is None else (self.causal,)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The dtypes; fp16, if none was asked for."""
        return self.dtypes or ("fp16",)

    def grid(self) -> list[Problem]:
        """The problems to tune: the benchmark grid, narrowed by what was given."""
        return self._plan(self.headdims or HEADDIMS, self.seqlens or GRID_SEQLENS)

    def named(self) -> list[Problem]:
        """The problems that were named one by one: headdim and seqlen must be given."""
        for option, given in (("--hdim", self.headdims), ("--seqlen", self.seqlens)):
            if not given:
                raise CommandError(f"{option} is missing: it must be a whole number of at least 1")
        return self._plan(self.headdims or (), self.seqlens or ())

    def _plan(self, headdims: Sequence[int], seqlens: Sequence[int]) -> list[Problem]:
        from tuner.search.plan import plan

        return plan(headdims, seqlens, self.masks, self.kinds, self.batch, self.heads)

    def variants(self, problems: Iterable[Problem]) -> list[Problem]:
        """`problems` of the headdims and seqlens that were given, in the masks, dtypes, batch and
        heads that were.

        Raises:
            CommandError: none is left.
        """
        found = [
            replace(
                problem,
                causal=problem.causal if self.causal is None else self.causal,
                dtype=dtype,
                batch=self.batch or problem.batch,
                heads=self.heads or problem.heads,
            )
            for problem in problems
            for dtype in self.dtypes or (problem.dtype,)
            if problem.headdim in (self.headdims or (problem.headdim,))
            and problem.seqlen in (self.seqlens or (problem.seqlen,))
        ]
        if not found:
            raise CommandError("no headline shape is so: give both --hdim and --seqlen")
        return found


def shapes(
    hdim: Sequence[str] | None = None,
    seqlen: Sequence[str] | None = None,
    causal: bool | None = None,
    dtype: Sequence[str] | None = None,
    batch: int | None = None,
    heads: int | None = None,
) -> Shapes:
    """Read the shape options.

    Raises:
        CommandError: one is out of its domain.
    """
    headdims = whole_numbers("--hdim", hdim)
    for headdim in headdims or ():
        if headdim not in HEADDIMS:
            known = ", ".join(map(str, HEADDIMS))
            raise CommandError(f"--hdim is {headdim}, but must be one of {known}")
    return Shapes(
        headdims,
        whole_numbers("--seqlen", seqlen),
        causal,
        several("--dtype", dtype, DTYPES),
        batch,
        heads,
    )


def whole_numbers(option: str, texts: Sequence[str] | None) -> tuple[int, ...] | None:
    """Numbers of a repeatable option whose values may be lists with commas."""
    if not texts:
        return None
    numbers = []
    for text in ",".join(texts).split(","):
        number = _number(text)
        if number is None or number < 1:
            raise CommandError(
                f"{option} is {shown(text)}, but must be a whole number of at least 1 and "
                f"{_MOST_DIGITS} digits at most (several: repeat the option, or separate them by "
                "commas)"
            )
        numbers.append(number)
    return tuple(dict.fromkeys(numbers))


def gpus(text: str | None) -> tuple[int, ...] | None:
    """CUDA's numbers of GPUs, as this process counts them; None for `all`, (0,) if not given."""
    if text is None:
        return (0,)
    if text.strip() == "all":
        return None
    numbers = [_number(part) for part in text.split(",")]
    if None in numbers or len(set(numbers)) < len(numbers):
        raise CommandError(
            f"--gpus is {shown(text)}, but must be all, or different numbers of GPUs, such as 0,1"
        )
    return tuple(number for number in numbers if number is not None)


def seconds(option: str, text: str | None) -> float | None:
    """A span of time such as 90, 90s, 2m, 1h or 1m30s."""
    if text is None:
        return None
    number = f"[0-9]{{1,{_MOST_DIGITS}}}"
    match = re.fullmatch(
        rf"(?:({number})h)?(?:({number})m)?(?:({number}(?:\.{number})?)s?)?",
        text.strip().lower().replace(" ", ""),
    )
    hours, minutes, rest = match.groups() if match else (None, None, None)
    total = 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(rest or 0)
    if total <= 0:
        raise CommandError(
            f"{option} is {shown(text)}, but must be a time above zero, in numbers of at most "
            f"{_MOST_DIGITS} digits, such as 60s, 2m or 1h30m"
        )
    return total


def one_of(option: str, text: str, accepted: Sequence[str]) -> str:
    """`text`, if it is one of `accepted`."""
    if text not in accepted:
        raise CommandError(f"{option} is {shown(text)}, but must be one of {', '.join(accepted)}")
    return text


def several(
    option: str, texts: Sequence[str] | None, accepted: Sequence[str]
) -> tuple[str, ...] | None:
    """Names of a repeatable option whose values may be lists with commas; None if not given."""
    if not texts:
        return None
    names = (name.strip() for name in ",".join(texts).split(","))
    return tuple(dict.fromkeys(one_of(option, name, accepted) for name in names))


def templates(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The named templates, each of which is registered; None for all."""
    from kernels.attention import registry

    return several("--template", names, registry.names())
