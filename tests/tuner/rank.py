"""A process that serves calls by a stand-in for an H100, as a rank of a distributed job does.

    python -m tests.tuner.rank

For every line of its input, a seqlen to call with or `refresh`, it prints the snapshot's hash and
the config that served the last call.
"""

from __future__ import annotations

import sys
import warnings

import tuner  # isort: skip  (before `kernels`, whose name it may share)

import torch

from tests.tuner.stand_in import standing_in
from tuner import snapshot


def main() -> None:
    warnings.simplefilter("ignore", tuner.UntunedWarning)
    snapshot.LOOK_EVERY_S = 0.0  # whoever may look at the database does so at every new shape
    with standing_in() as template:
        tuner.use()  # what TUNER_DB names, as at the first call of a process without a stand-in
        for line in sys.stdin:
            if line.strip() == "refresh":
                tuner.refresh()
            else:
                q, k, v = torch.zeros(3, 1, 2, int(line), 64, dtype=torch.float16)
                tuner.custom_attention_forward(q, k, v)
            served = template.loaded[-1][0] if template.loaded else None
            print(tuner.snapshot_hash(), served, flush=True)


if __name__ == "__main__":
    main()
