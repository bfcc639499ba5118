"""Which of the user's files travel with a function, and under which names."""

import importlib
from pathlib import Path

import pytest

from plugin_core.specs import sources


@pytest.mark.parametrize("path", [["", "src"], ["", "project"]], ids=["a src folder", "a package's own folder"])
def test_a_module_travels_under_the_name_by_which_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: list[str]
) -> None:
    """Folders on `sys.path` may lie in one another."""
    files = {
        "flow.py": "import tools.net\nimport project.model\ndef loop(config): ...\n",
        "project/__init__.py": "",
        "project/model.py": "",
        "src/tools/__init__.py": "",
        "src/tools/net.py": "",
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    for folder in path:
        monkeypatch.syspath_prepend(tmp_path / folder)
    importlib.invalidate_caches()
    expected = {"flow.py", "project/__init__.py", "project/model.py"}
    if "src" in path:
        expected |= {"tools/__init__.py", "tools/net.py"}
    assert set(sources.local_sources(["flow:loop"])) == expected
