"""The logs of real jobs."""

from pathlib import Path

LOGS = Path(__file__).parent / "job_logs"


def recorded(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()
