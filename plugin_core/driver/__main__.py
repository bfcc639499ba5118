"""`python -m plugin_core.driver RUN_URI ATTEMPT NONCE CODE`: the entrypoint of a run's Ray jobs."""

import sys

import ray  # noqa: F401  # has psutil with it, where there is none

from plugin_core.driver.attempt import leave, main
from plugin_core.storage.location import be_patient

if __name__ == "__main__":
    be_patient()
    leave(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]))
