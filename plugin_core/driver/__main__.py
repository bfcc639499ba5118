"""`python -m plugin_core.driver RUN_URI ATTEMPT NONCE CODE`: the entrypoint of a run's Ray jobs."""

import sys
from importlib.util import find_spec

if find_spec("psutil") is None:
    import ray  # noqa: F401  # it bundles psutil; otherwise import it later, so that the driver shows itself first

from plugin_core.driver.attempt import leave, main
from plugin_core.storage.location import be_patient

if __name__ == "__main__":
    be_patient()
    leave(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]))
