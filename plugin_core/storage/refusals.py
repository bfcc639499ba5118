"""Recognise storage errors that a retry cannot fix."""

from __future__ import annotations

import errno
import os
import re

#: Permanent errors in the messages of the cloud SDKs, pyarrow and fsspec → how we describe them.
_REFUSALS = {
    r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|there is no bucket": "whose bucket does not exist",
    r"NoCredentials|Unable to locate credentials": "for which there are no credentials here",
    # a HEAD response does not say which of the two
    r"InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|Access_?Denied|ACCESS_DENIED|Forbidden|status 403"
    r"|failed to authenticate|AuthenticationFailed|AuthorizationFailure|PermissionMismatch|Invalid Credentials": (
        "which rejects these credentials (wrong key or no permission)"
    ),
}


def refusal(error: BaseException) -> str:
    """Describe a permanent storage error as a clause that follows the URI; "" if the error may be transient."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return f"which is not writable for this user ({os.strerror(cause.errno)})"
        if isinstance(cause, OSError) and cause.errno in (errno.ENOTDIR, errno.EEXIST):
            return "where a file is in the way"
        text = f"{type(cause).__name__}: {cause}"
        for pattern, words in _REFUSALS.items():
            if re.search(pattern, text):
                return words
        cause = cause.__cause__
    return ""
