"""How functions travel: by-value pickles, the user's neighbouring modules."""

import importlib
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from plugin_core.errors import PayloadError
from plugin_core.specs import functions, sources
from plugin_core.specs.code_digest import sources_digest
from plugin_core.specs.working_folders import uploaded_folders
from tests.support.users_modules import module

LOOP = """
    import json
    FACTOR = 2
    def helper(x):
        return x * FACTOR
    def loop(config):
        return helper(config["x"]) + 1
"""


def test_a_function_that_cannot_be_pickled_names_the_captured_object() -> None:
    lock = threading.Lock()

    def loop() -> None:
        lock.acquire()

    with pytest.raises(
        PayloadError, match=r"train_loop_per_worker: got the function .*loop.*captured object 'lock' of type"
    ):
        functions.pickle_functions({"train_loop_per_worker": loop})


def test_a_by_value_function_needs_no_module_of_its_own_on_the_other_side(tmp_path: Path) -> None:
    loop = module(tmp_path, LOOP, name="only_here")["loop"]
    (tmp_path / "payload").write_bytes(functions.pickle_functions({"train_loop_per_worker": loop}))
    code = (
        "import sys; from plugin_core.specs.functions import unpickle_functions as u;"
        "fn = u(open(sys.argv[1], 'rb').read())['train_loop_per_worker']; print(fn({'x': 4}))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "payload")]
    found = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "9"


@pytest.mark.parametrize("init", [True, False], ids=["a package", "a folder without __init__.py"])
def test_neighbouring_modules_travel_also_when_imported_inside_a_function(tmp_path: Path, init: bool) -> None:
    (tmp_path / "utils").mkdir()
    if init:
        (tmp_path / "utils" / "__init__.py").write_text("")
    (tmp_path / "utils" / "model.py").write_text("from utils.parts import part\n")
    (tmp_path / "utils" / "parts.py").write_text("part = 1\n")
    (tmp_path / "utils" / "unused.py").write_text("")
    (tmp_path / "beside.py").write_text("import json\n")
    source = "import beside\ndef loop(config):\n    from utils.model import part\n    return part\n"
    loop = module(tmp_path, source, name="flow")["loop"]
    expected = {"beside.py", "utils/model.py", "utils/parts.py"} | ({"utils/__init__.py"} if init else set())
    assert set(sources.local_sources([loop])) == expected


def test_a_by_reference_function_brings_its_own_module_when_it_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import other\ndef loop(): pass\n")
    (tmp_path / "other.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(sources.local_sources(["mine:loop"])) == {"mine.py", "other.py"}
    assert sources.local_sources(["json:dumps"]) == {}
    assert sources.local_sources(["ray.train:report"]) == {}


def test_a_module_of_a_package_imports_relatively(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "team/__init__.py": "from .names import NAME\n",
        "team/names.py": "NAME = 'vision'\n",
        "team/models/__init__.py": "",
        "team/models/train.py": "from . import net\nfrom ..names import NAME\ndef loop(config): return net.WIDTH, NAME\n",
        "team/models/net.py": "from .sizes import WIDTH\n",
        "team/models/sizes.py": "WIDTH = 3\n",
    }
    (tmp_path / "team" / "models").mkdir(parents=True)
    for name, source in {**files, "team/unused.py": ""}.items():
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    loop = importlib.import_module("team.models.train").loop
    for function in ("team.models.train:loop", loop):
        assert set(sources.local_sources([function])) == set(files)
    monkeypatch.setattr(sys.modules["team.models.train"], "__name__", "__main__")  # as `python -m` calls it
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["team.models.train"])
    monkeypatch.setattr(loop, "__module__", "__main__")
    assert set(sources.local_sources([loop])) == set(files)


def test_a_package_that_an_editable_install_hooks_into_the_import_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As setuptools does it for a project without a `src` folder."""
    project, beside = tmp_path / "project", tmp_path / "beside"
    (project / "hooked").mkdir(parents=True)
    beside.mkdir()
    (project / "hooked" / "__init__.py").write_text("")
    (project / "hooked" / "train.py").write_text("from . import net\ndef loop(config): return net.WIDTH\n")
    (project / "hooked" / "net.py").write_text("WIDTH = 3\n")
    (beside / "uses_it.py").write_text("from hooked.train import loop\n")

    class Hook:
        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return spec_from_file_location(name, project / "hooked" / "__init__.py") if name == "hooked" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Hook])
    monkeypatch.syspath_prepend(beside)
    functions.check_reference("train_loop_per_worker", "hooked.train:loop", must_exist=True)
    with pytest.raises(PayloadError, match=r"no module named 'hooked\.other' here"):
        functions.check_reference("train_loop_per_worker", "hooked.other:loop", must_exist=True)
    files = {"hooked/__init__.py", "hooked/train.py", "hooked/net.py"}
    assert set(sources.local_sources(["hooked.train:loop"])) == files
    assert set(sources.local_sources(["uses_it:loop"])) == {*files, "uses_it.py"}


def test_steps_in_threads_look_for_modules_at_the_same_time() -> None:
    before = sys.getswitchinterval()
    gone: dict[str, Any] = {f"/gone/{number}.zip": None for number in range(20_000)}

    def look() -> set[str]:
        sys.path_importer_cache.update(gone)  # as imports left them
        return set(sources.local_sources(["devtools.steps:evaluate"]))

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: look(), range(40)))
    finally:
        sys.setswitchinterval(before)
    assert all("devtools/steps.py" in files for files in found)


def test_a_script_may_try_a_relative_import_before_an_absolute_one(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("X = 1\n")
    source = "try:\n    from . import beside\nexcept ImportError:\n    import beside\ndef loop(config): return beside.X\n"
    loop = module(tmp_path, source, name="script")["loop"]
    assert set(sources.local_sources([loop])) == {"beside.py"}


def test_a_function_whose_file_was_deleted_is_sent_without_it(tmp_path: Path) -> None:
    loop = module(tmp_path, LOOP, name="deleted")["loop"]
    (tmp_path / "deleted.py").unlink()
    assert sources.local_sources([loop]) == {}
    assert functions.pickle_functions({"train_loop_per_worker": loop})


def test_our_own_packages_are_not_searched_for_modules_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import plugin_core\nimport other\ndef loop(config): ...\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "ours_alone.py").write_text("")
    (tmp_path / "plugin_core").mkdir()
    (tmp_path / "plugin_core" / "__init__.py").write_text("import ours_alone\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(sources.local_sources(["mine:loop"])) == {"mine.py", "other.py"}


def test_a_helper_that_cannot_be_parsed_travels_so_that_the_cluster_tells_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import broken\nimport compiled\ndef loop(config): ...\n")
    helpers = {"broken.py": b"def helper(:\n", f"compiled{EXTENSION_SUFFIXES[0]}": b"\x7fELF\0\0"}
    for name, content in helpers.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    found = sources.local_sources(["mine:loop"])
    assert {name: found[name] for name in helpers} == helpers
    assert sources_digest(found) == sources_digest(dict(found))
    for name in helpers:
        assert sources_digest(found) != sources_digest({**found, name: found[name] + b"\0"})


def test_the_modules_of_a_packaged_dag_travel_and_what_they_import_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = {
        "packaged_dag.py": b"import parts.inner\ndef loop(config): return parts.inner.X\n",
        "parts/__init__.py": b"",
        "parts/inner.py": b"from . import more\nimport outside\nX = more.X\n",
        "parts/more.py": b"X = 7\n",
    }
    (tmp_path / "dags.zip").write_bytes(sources.pack({**inside, "unused.py": b"", "data.csv": b"x"}))
    (tmp_path / "outside.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "dags.zip")
    functions.check_reference("train_loop_per_worker", "packaged_dag:loop", must_exist=True)
    with pytest.raises(PayloadError, match="packaged_dag has no 'other'"):
        functions.check_reference("train_loop_per_worker", "packaged_dag:other", must_exist=True)
    found = importlib.import_module("packaged_dag")
    assert sources.local_sources(["packaged_dag:loop"]) == {**inside, "outside.py": b""}
    inside.pop("packaged_dag.py")
    assert sources.local_sources([found.loop]) == {**inside, "outside.py": b""}
    assert "value:loop#" in functions.by_value_name(found.loop)


def test_packages_that_pip_installed_into_a_folder_are_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bought").mkdir()
    (tmp_path / "bought" / "__init__.py").write_text("def loop(config): ...\n")
    (tmp_path / "bought-1.0.dist-info").mkdir()
    (tmp_path / "bought-1.0.dist-info" / "METADATA").write_text("Name: bought\nVersion: 1.0\n")
    (tmp_path / "bought-1.0.dist-info" / "RECORD").write_text("bought/__init__.py,,\nbought-1.0.dist-info/METADATA,,\n")
    (tmp_path / "mine.py").write_text("import bought\ndef loop(config): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(sources.local_sources(["mine:loop"])) == {"mine.py"}
    assert sources.local_sources(["bought:loop"]) == {}


def test_a_modules_file_that_cannot_be_parsed_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("def loop(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PayloadError, match=r"train_loop_per_worker: got 'broken:loop'.*broken.py"):
        functions.check_reference("train_loop_per_worker", "broken:loop", must_exist=True)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("no_such_module_x:loop", "no module named 'no_such_module_x' here"),
        ("tests.no_such:loop", "no module named 'tests.no_such' here; 'tests' is /"),
        ("devtools.steps:no_loop", "devtools.steps has no 'no_loop'"),
    ],
)
def test_a_function_that_cannot_be_imported_is_refused_without_importing(reference: str, words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        functions.check_reference("evaluate", reference, must_exist=True)


def test_a_module_that_makes_its_names_when_asked_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_names.py").write_text("def __getattr__(name): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    functions.check_reference("evaluate", "lazy_names:loop", must_exist=True)


def test_a_module_that_is_only_on_a_remote_cluster_is_not_refused_here() -> None:
    functions.check_reference("evaluate", "only_on_the_cluster:fn", must_exist=False)


def test_a_module_of_an_uploaded_folder_comes_before_one_of_the_same_name_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in (("here", "other"), ("uploaded", "loop")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twice.py").write_text(f"def {name}(config): ...\n")
    (tmp_path / "uploaded" / "package").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    for runtime_env in (
        {"working_dir": str(tmp_path / "uploaded")},
        {"py_modules": [str(tmp_path / "uploaded" / "package")]},
    ):
        uploaded, all_seen = uploaded_folders(runtime_env)
        assert (uploaded, all_seen) == ([str(tmp_path / "uploaded")], True)
    functions.check_reference("evaluate", "twice:loop", must_exist=True, uploaded=uploaded)
    with pytest.raises(PayloadError, match="twice has no 'other'"):
        functions.check_reference("evaluate", "twice:other", must_exist=True, uploaded=uploaded)
    assert sources.local_sources(["twice:loop"], uploaded) == {"twice.py": b"def loop(config): ...\n"}
    assert uploaded_folders({"working_dir": "s3://b/code.zip"}) == ([], False)
    assert uploaded_folders({"py_modules": [str(tmp_path / "x.whl")]}) == ([], False)
    assert uploaded_folders({}) == ([], True)


def test_packed_sources_unpack_to_importable_modules(tmp_path: Path) -> None:
    packed = sources.pack({"a.py": b"x = 1", "p/__init__.py": b"", "p/q.py": b""})
    assert sources.unpack(packed, tmp_path) == [str(tmp_path / "a.py"), str(tmp_path / "p")]
    assert (tmp_path / "p" / "q.py").exists()


def test_what_was_uploaded_in_full_is_left_out_of_the_unpacked_sources(tmp_path: Path) -> None:
    packed = sources.pack({"a.py": b"x = 1", "p/__init__.py": b"", "p/q.py": b"", "r/__init__.py": b""})
    for name, content in {"a.py": "x = 1", "p/__init__.py": "", "p/q.py": "", "p/more.py": "", "r/other.py": ""}.items():
        (tmp_path / "uploaded" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "uploaded" / name).write_text(content)
    uploaded = [str(tmp_path / "elsewhere"), str(tmp_path / "uploaded")]
    assert sources.unpack(packed, tmp_path / "one", uploaded) == [str(tmp_path / "one" / "r")], "r/__init__.py is missing"
    (tmp_path / "uploaded" / "a.py").write_text("x = 2")
    (tmp_path / "uploaded" / "p" / "q.py").unlink()
    parts = [str(tmp_path / "two" / name) for name in ("a.py", "p", "r")]
    assert sources.unpack(packed, tmp_path / "two", uploaded) == parts, "one differs, one is incomplete"


def test_call_with_passes_as_many_arguments_as_the_function_accepts() -> None:
    assert functions.call_with(lambda: 0, 1, 2) == 0
    assert functions.call_with(lambda a: a, 1, 2) == 1
    assert functions.call_with(lambda *a: a, 1, 2) == (1, 2)


def test_a_function_of_a_built_in_module_has_no_source_to_send() -> None:
    assert sources.local_sources(["time:sleep", time.sleep]) == {}


def test_steps_in_threads_pickle_their_functions_at_the_same_time() -> None:
    """cloudpickle's list of modules by value is one for the process: a thread must not take another's away."""
    from concurrent.futures import ThreadPoolExecutor

    from devtools.steps import counting_loop
    from plugin_core.specs.functions import pickle_functions

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            made = set(pool.map(lambda _: pickle_functions({"loop": counting_loop}), range(100)))
    finally:
        sys.setswitchinterval(before)
    assert len(made) == 1


def test_a_reference_into_a_module_that_exits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some of Ray's examples do under a Python that TensorFlow did not support; the driver would end without a word."""
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\ndef loop(config): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PayloadError, match="got 'leaving:loop', whose module calls sys"):
        functions.import_function("train_loop_per_worker", "leaving:loop")


def test_a_reference_to_a_class_is_refused_where_a_function_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shapes.py").write_text("raise ImportError\nclass Loop:\n    def run(config): pass\ndef loop(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    field = "train_loop_per_worker"
    for reference in ("shapes:loop", "shapes:Loop.run"):
        functions.check_reference(field, reference, must_exist=True, may_be_class=False)
    functions.check_reference("predictor", "shapes:Loop", must_exist=True)
    with pytest.raises(PayloadError, match="train_loop_per_worker: got the class 'shapes:Loop'; expected a function"):
        functions.check_reference(field, "shapes:Loop", must_exist=True, may_be_class=False)
