"""Object storage through other clients, and as a spec's storage that is refused."""

from pathlib import Path

import pytest

from devtools.servers import s3_endpoint
from plugin_core import RunConfig, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError
from tests.support.fake_steps import spec_at


def by_s3fs(uri: str) -> str:
    """The same location through fsspec."""
    return f"s3fs{uri.partition('?')[0][2:]}?endpoint_url={s3_endpoint(uri)}"


def refused(tmp_path: Path, uri: str, words: str) -> None:
    spec = spec_at(tmp_path, run_config=RunConfig(name="run", storage_path=uri))
    with FakeCluster() as cluster:
        with pytest.raises(SpecError) as told:
            run(spec, cluster)
        assert cluster.submits == 0
    assert told.value.message.startswith(f"run_config.storage_path: got '{uri}', {words}; expected")
    assert "word" not in told.value.message.replace(words, "")
