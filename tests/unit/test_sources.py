"""Which of the user's files travel with a function, and under which names."""

import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from plugin_core.specs import functions, sources
from tests.support.users_modules import module


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


def test_a_partial_of_a_function_takes_its_module_and_what_that_imports_along(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("ADDED = 1\n")
    source = "import beside\ndef loop(config, rate): return config * rate + beside.ADDED\n"
    loop = functools.partial(module(tmp_path, source, name="partly_here")["loop"], rate=3)
    assert set(sources.local_sources([loop])) == {"beside.py"}
    (tmp_path / "payload").write_bytes(functions.pickle_functions({"train_loop_per_worker": loop}))
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "beside.py").write_text("ADDED = 1\n")
    code = (
        "import sys; from plugin_core.specs.functions import unpickle_functions as u; sys.path.append(sys.argv[2]);"
        "print(u(open(sys.argv[1], 'rb').read())['train_loop_per_worker'](4))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "payload"), str(tmp_path / "cluster")]
    assert subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout.strip() == "13"
