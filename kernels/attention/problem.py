"""What a kernel is tuned for: an attention problem, and the part of it a binary depends on."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.attention.printable import shown

DTYPES = ("fp16", "bf16")
HEADDIMS = (64, 128, 256)

# The FlashAttention papers' benchmark grid: 16384 tokens and a hidden size of 2048 at every seqlen
# (Dao, "FlashAttention-2", section 4.1), so that all points do comparable work.
GRID_SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
GRID_TOKENS = 16384
GRID_HIDDEN = 2048

_MOST = 2**53 - 1  # what every database and JSON reader holds exactly


@dataclass(frozen=True, order=True)
class Specialization:
    """What a binary depends on. Seqlen, batch, heads and strides are run-time arguments."""

    headdim: int
    causal: bool
    dtype: str
    lse: bool = False  # also store the log-sum-exp


@dataclass(frozen=True, order=True)
class Problem:
    """One point of tuning: self-attention forward over (batch, heads, seqlen, headdim).

    Raises:
        ValueError: a field is out of its domain; the sentence names the field.
    """

    headdim: int
    seqlen: int
    causal: bool
    dtype: str
    batch: int
    heads: int

    def __post_init__(self) -> None:
        for name in ("headdim", "seqlen", "batch", "heads"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{name} is {shown(value)}, but must be a whole number of at least 1"
                )
            if value > _MOST:
                raise ValueError(
                    f"{name} is a number of {value.bit_length()} bits, but may have 53"
                )
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal is {shown(self.causal)}, but must be true or false")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise ValueError(
                f"dtype is {shown(self.dtype)}, but must be one of {', '.join(DTYPES)}"
            )

    @classmethod
    def on_grid(
        cls,
        headdim: int,
        seqlen: int,
        causal: bool,
        dtype: str = "fp16",
        batch: int | None = None,
        heads: int | None = None,
    ) -> Problem:
        """The problem with batch and heads of the benchmark grid where they are not given."""
        if batch is None:
            fits = isinstance(seqlen, int) and seqlen >= 1
            batch = max(1, GRID_TOKENS // seqlen) if fits else 1
        if heads is None:
            fits = isinstance(headdim, int) and headdim >= 1
            heads = max(1, GRID_HIDDEN // headdim) if fits else 1
        return cls(
            headdim=headdim,
            seqlen=seqlen,
            causal=causal,
            dtype=dtype,
            batch=batch,
            heads=heads,
        )

    @property
    def specialization(self) -> Specialization:
        return Specialization(self.headdim, self.causal, self.dtype)

    @property
    def flops(self) -> int:
        """Floating-point operations by the field's convention: 4·B·S²·H·D, halved for causal."""
        full = 4 * self.batch * self.seqlen**2 * self.heads * self.headdim
        return full // 2 if self.causal else full

    def tflops(self, ms: float) -> float:
        """TFLOP/s of a forward that takes `ms`."""
        return self.flops / ms * 1e-9

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"D{self.headdim} S{self.seqlen} {mask} {self.dtype} B{self.batch} H{self.heads}"


# The shapes whose figures are published, all on the grid.
HEADLINE = (
    Problem.on_grid(64, 4096, causal=True),
    Problem.on_grid(128, 8192, causal=True),
    Problem.on_grid(256, 16384, causal=True),
)


def ratio(a: int, b: int) -> float:
    """How many times the larger of two sizes is the smaller."""
    return max(a, b) / min(a, b)
