"""Files that go along with a submit: where the job's variables name them."""

import os
import subprocess
import sys
from pathlib import Path

from plugin_core import env_files

PROGRAM = """
import os
from plugin_core import env_files
env_files.write()
path = os.environ["DATABRICKS_CONFIG_FILE"]
print(path, oct(os.stat(path).st_mode & 0o777), open(path).read())
"""


def test_the_variable_names_a_file_of_the_owners_alone_that_goes_with_the_process(tmp_path: Path) -> None:
    variables = env_files.as_variables({"DATABRICKS_CONFIG_FILE": "token = hunter2"})
    environment = {**os.environ, **variables, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, mode, content = done.stdout.split(" ", 2)
    assert (Path(path).parent, mode) == (tmp_path, "0o600")
    assert content.startswith("token = hunter2")
    assert list(tmp_path.iterdir()) == []
