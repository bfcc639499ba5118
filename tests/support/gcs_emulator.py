"""`python -m tests.support.gcs_emulator PORT`: the emulator of Google Cloud Storage from PyPI, with the bucket "runs".

gcp-storage-emulator 2026.7.19 ignores preconditions: an upload with `ifGenerationMatch=0` replaces what is there.
Google's servers answer 412, and so does the function here. It also cuts names at a semicolon, which is fixed here. With
`--ignore-conditions`, preconditions are ignored as in the original: a storage that does not do what it is asked.
"""

import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects


def insert_if_absent(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
    """An upload as Google documents it: refused if `ifGenerationMatch=0` is given and the object exists.

    The emulator serves one request after another, so nothing comes between the check and the upload.
    """
    if request.query.get("ifGenerationMatch") == ["0"]:
        name = request.query["name"][0] if "name" in request.query else request.data["meta"]["name"]
        try:
            storage.get_file_obj(request.params["bucket_name"], name)
        except NotFound:
            pass
        else:
            response.status = HTTPStatus.PRECONDITION_FAILED
            response.json(
                {"error": {"code": 412, "message": "At least one of the pre-conditions you specified did not hold."}}
            )
            return
    objects.insert(request, response, storage, *args, **kwargs)


def main(port: int, *, conditions: bool) -> None:
    server.urlparse = urlsplit
    if conditions:
        for _, methods in server.HANDLERS:
            if methods.get(server.POST) is objects.insert:
                methods[server.POST] = insert_if_absent
    server.create_server("127.0.0.1", port, in_memory=True, default_bucket="runs").run()


if __name__ == "__main__":
    main(int(sys.argv[1]), conditions="--ignore-conditions" not in sys.argv)
