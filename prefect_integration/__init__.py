"""Ray training steps in Prefect: tasks, blocks, hooks and automations.

    from prefect import flow
    from prefect_integration import train

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugin_core.engine import lazy_exports

if TYPE_CHECKING:
    from prefect_integration.automations import create_recovery_automations as create_recovery_automations
    from prefect_integration.blocks import RayCluster as RayCluster
    from prefect_integration.blocks import RayTrainJob as RayTrainJob
    from prefect_integration.blocks import RayTrainJobRun as RayTrainJobRun
    from prefect_integration.decorators import ray_task as ray_task
    from prefect_integration.hooks import cancel_ray_jobs as cancel_ray_jobs
    from prefect_integration.hooks import report_ray_jobs as report_ray_jobs
    from prefect_integration.tasks import abatch_infer as abatch_infer
    from prefect_integration.tasks import aevaluate as aevaluate
    from prefect_integration.tasks import aray_job as aray_job
    from prefect_integration.tasks import aretrain as aretrain
    from prefect_integration.tasks import arun_step as arun_step
    from prefect_integration.tasks import atrain as atrain
    from prefect_integration.tasks import atune as atune
    from prefect_integration.tasks import batch_infer as batch_infer
    from prefect_integration.tasks import end_cluster as end_cluster
    from prefect_integration.tasks import evaluate as evaluate
    from prefect_integration.tasks import promote as promote
    from prefect_integration.tasks import ray_job as ray_job
    from prefect_integration.tasks import retrain as retrain
    from prefect_integration.tasks import rollback as rollback
    from prefect_integration.tasks import run_step as run_step
    from prefect_integration.tasks import start_cluster as start_cluster
    from prefect_integration.tasks import train as train
    from prefect_integration.tasks import tune as tune

_PUBLIC = {
    "automations": "create_recovery_automations",
    "blocks": "RayCluster RayTrainJob RayTrainJobRun",
    "hooks": "cancel_ray_jobs report_ray_jobs",
    "decorators": "ray_task",
    "tasks": "abatch_infer aevaluate aray_job aretrain arun_step atrain atune batch_infer end_cluster evaluate promote"
    " ray_job retrain rollback run_step start_cluster train tune",
}
__all__, __getattr__ = lazy_exports(__name__, _PUBLIC)


def __dir__() -> list[str]:
    """Include the lazily imported names, for `prefect block register -m prefect_integration`."""
    return [*globals(), *__all__]
