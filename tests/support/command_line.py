"""`raytrain` as a user calls it."""

import os
import subprocess
import sys
from pathlib import Path


def raytrain(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("raytrain")), *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
