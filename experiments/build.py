"""Compile the Hopper kernel for clusters of two blocks, by Triton 3.9, without a GPU.

    python experiments/build.py FOLDER

Writes a cubin and what a launch has to know of it for each variant. `probe.py` launches them by
Triton 3.6's launcher, whose parameters are the same.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401
from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True, parents=True)
    template = registry.get("hopper")
    for headdim in (256, 128, 64):
        for causal in (True, False):
            for dtype in ("fp16", "bf16"):
                problem = Problem.on_grid(headdim, 16384, causal, dtype)
                for cluster in (1, 2):
                    config = Config(template.default(problem, 90), cluster=cluster)
                    binary = template.compile(problem.specialization, config, 90)
                    name = f"D{headdim}-{'causal' if causal else 'full'}-{dtype}-{cluster}"
                    (folder / f"{name}.cubin").write_bytes(binary.kernel.asm["cubin"])
                    meta = {
                        "problem": [headdim, causal, dtype],
                        "config": dict(config),
                        "packed": list(binary.kernel.packed_metadata)[:3],
                    }
                    (folder / f"{name}.json").write_text(json.dumps(meta))
                    print(name, meta["packed"], flush=True)


main()
