"""What `test_dagster.py` materializes; the variables name the spec, and what is there to run it."""

import os

from dagster import Definitions

from example_dagster.ray_assets import ray_step_asset
from plugin_core import load_spec

defs = Definitions(assets=[ray_step_asset(load_spec(os.environ["SPEC"]))])
