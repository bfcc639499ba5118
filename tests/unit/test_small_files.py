"""How small files are created where requests are lost, conflict, or are killed."""

import os
from pathlib import Path
from typing import Any

import pytest

from plugin_core.runs.output_folder import OWNER, claim_output
from plugin_core.storage import local_backend
from plugin_core.storage.location import Location


def test_a_killed_claim_of_an_output_folder_does_not_count_as_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, run = Location.of(str(tmp_path / "out")), Location.of(str(tmp_path / "run"))

    def killed(*_: Any) -> None:
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(local_backend.os, "link", killed)
        patch.setattr(local_backend.os, "unlink", lambda path: None)
        with pytest.raises(SystemError):
            claim_output(root, run)
    assert len(os.listdir(root.uri)) == 1
    claim_output(root, run)
    assert root.names() == [OWNER]
    assert list(root.versions()) == [OWNER]
