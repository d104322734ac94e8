"""A virtual environment to install our distributions into."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment. It sees what is installed beside pytest for our dependencies' sake,
    behind its own packages."""

    folder: Path

    @property
    def python(self) -> Path:
        scripts = Path(sysconfig.get_path("scripts", "venv", {"base": str(self.folder)}))
        return scripts / Path(sys.executable).name

    @property
    def site(self) -> Path:
        variables = {"base": str(self.folder), "platbase": str(self.folder)}
        return Path(sysconfig.get_path("purelib", "venv", variables))

    def pip(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pip", "--python", self.python, "-q", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def install(self, *words: str | Path) -> None:
        done = self.pip("install", *words)
        assert done.returncode == 0, done.stderr

    def run(self, code: str, cwd: Path) -> str:
        done = subprocess.run(
            [self.python, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def create(folder: Path) -> Environment:
    """A new environment at `folder`."""
    venv.create(folder, symlinks=True)
    environment = Environment(folder)
    (environment.site / "beside-pytest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment
