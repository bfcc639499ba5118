"""The search for secrets finds them, in each form that they may have."""

import gzip
import zipfile
from pathlib import Path

from tests.support.canaries import canary, escaped, found_in, found_under


def test_a_canary_is_found_in_every_form_and_nothing_else_is() -> None:
    secret, other = canary("token"), canary("token")
    for form, data in escaped(secret).items():
        assert found_in(b"before " + data + b" after", [secret, other]) == [secret], form


def test_a_canary_is_found_in_files_and_archives(tmp_path: Path) -> None:
    secret = canary("file")
    (tmp_path / "log.gz").write_bytes(gzip.compress(secret.encode()))
    with zipfile.ZipFile(tmp_path / "code.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("module.py", f"KEY = {secret!r}" * 9)
    (tmp_path / "good").write_text("nothing")
    found = found_under([tmp_path], [secret])
    assert sorted(Path(line.partition(":")[0]).name for line in found) == ["code.zip", "log.gz"]
