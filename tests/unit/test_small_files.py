"""How small files are created where requests are lost, conflict, or are killed."""

import os
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from plugin_core.errors import SpecError
from plugin_core.runs.output_folder import OWNER, claim_output
from plugin_core.storage import local_backend, s3_backend
from plugin_core.storage.location import Location
from plugin_core.storage.s3_backend import S3Objects


class Bucket:
    """A client of a bucket with one key, which answers a put with one code after another."""

    def __init__(self, *answers: str, there: bool = False):
        self.answers = list(answers)
        self.there = there

    def put_object(self, **given: Any) -> None:
        assert given["IfNoneMatch"] == "*"
        if self.there:
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "PutObject")
        if self.answers and (code := self.answers.pop(0)):
            raise ClientError({"Error": {"Code": code}}, "PutObject")
        self.there = True

    def head_object(self, **given: Any) -> None:
        if not self.there:
            raise ClientError({"Error": {"Code": "404"}}, "HeadObject")


def objects(bucket: Bucket) -> S3Objects:
    found = S3Objects(None, {}, 1)
    found._made = os.getpid(), bucket
    return found


def test_a_conflict_on_s3_does_not_mean_that_the_object_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers 409 while another request changes the object, and expects the request again."""
    monkeypatch.setattr(s3_backend, "CONFLICT_S", (0.0, 0.0))
    bucket = Bucket("ConditionalRequestConflict", "409")
    assert objects(bucket).create("b/k", b"x") is True
    assert objects(bucket).create("b/k", b"x") is False
    with pytest.raises(ClientError, match="ConditionalRequestConflict"):
        objects(Bucket(*["ConditionalRequestConflict"] * 3)).create("b/k", b"x")


@pytest.mark.parametrize(
    "options", ["endpoint_override=bad host:80&region=r", "endpoint_override=localhost:1&region=bad region"]
)
def test_an_endpoint_or_region_that_no_client_accepts_is_refused(options: str) -> None:
    place = Location.of(f"s3://bucket/x?{options}")
    for use in (Location.read, Location.names, lambda place: place.create(b"x")):
        with pytest.raises(SpecError, match="whose endpoint_override or region is invalid; expected host:port"):
            use(place)


def test_a_file_whose_creation_is_repeated_because_its_answer_was_lost_is_the_creators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an NFS client does after its server started again."""
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    place = Location.of(str(tmp_path / "file"))
    assert place.create(b"x") is True
    assert place.create(b"x") is False
    assert os.listdir(tmp_path) == ["file"]


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
