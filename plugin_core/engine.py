"""The engine API: everything in this package that an adapter for a workflow engine uses.

An adapter turns its engine's arguments into a spec and a cluster, calls `prepare` and `Supervisor.run`, passes on the
events, and calls `acancel` when its task ends early. `example_dagster/ray_assets.py` is a complete one.

Names load on first use: an engine's parser imports its adapter, and must not import aiohttp or Ray for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugin_core import lazy_exports as lazy_exports

if TYPE_CHECKING:
    from plugin_core.clusters.base import Cluster as Cluster
    from plugin_core.clusters.base import LocalCluster as LocalCluster
    from plugin_core.clusters.base import RayCluster as RayCluster
    from plugin_core.clusters.doctor import describe_cluster as describe_cluster
    from plugin_core.clusters.fallback import FallbackCluster as FallbackCluster
    from plugin_core.clusters.find import find_cluster as find_cluster
    from plugin_core.clusters.find import find_fallback as find_fallback
    from plugin_core.clusters.kuberay_json import kuberay_from_json as kuberay_from_json
    from plugin_core.clusters.local_head import how_to_open as how_to_open
    from plugin_core.clusters.local_head_keeper import free_ports as free_ports
    from plugin_core.clusters.processes import wait_for_end as wait_for_end
    from plugin_core.clusters.secrets import Secrets as Secrets
    from plugin_core.clusters.shared import end_shared as end_shared
    from plugin_core.clusters.shared import start_shared as start_shared
    from plugin_core.errors import RayTrainWorkflowsError as RayTrainWorkflowsError
    from plugin_core.errors import SpecError as SpecError
    from plugin_core.errors import StepCancelledError as StepCancelledError
    from plugin_core.errors import StepError as StepError
    from plugin_core.errors.plain_text import markdown_text as markdown_text
    from plugin_core.errors.shown import did_you_mean as did_you_mean
    from plugin_core.errors.shown import shown as shown
    from plugin_core.registry.api import CHAMPION as CHAMPION
    from plugin_core.registry.api import promote as promote
    from plugin_core.registry.api import rollback as rollback
    from plugin_core.registry.base import ModelVersion as ModelVersion
    from plugin_core.runs.directory import RunDir as RunDir
    from plugin_core.runs.directory import run_name as run_name
    from plugin_core.runs.history import History as History
    from plugin_core.runs.spec_record import fields_fingerprint as fields_fingerprint
    from plugin_core.runs.spec_record import fingerprint as fingerprint
    from plugin_core.runs.spec_record import make_record as make_record
    from plugin_core.specs import BatchInferSpec as BatchInferSpec
    from plugin_core.specs import EvaluateSpec as EvaluateSpec
    from plugin_core.specs import RayJobSpec as RayJobSpec
    from plugin_core.specs import RetrainSpec as RetrainSpec
    from plugin_core.specs import StepSpec as StepSpec
    from plugin_core.specs import TrainSpec as TrainSpec
    from plugin_core.specs import TuneSpec as TuneSpec
    from plugin_core.specs import as_spec as as_spec
    from plugin_core.specs.fields import check_size as check_size
    from plugin_core.specs.outcomes import promoted as promoted
    from plugin_core.specs.parts import spec_datasets as spec_datasets
    from plugin_core.specs.ray_job import call_arguments as call_arguments
    from plugin_core.specs.ray_job import refuse_beside_a_call as refuse_beside_a_call
    from plugin_core.specs.references import safe_link as safe_link
    from plugin_core.specs.results import BatchInferResult as BatchInferResult
    from plugin_core.specs.results import EvaluationResult as EvaluationResult
    from plugin_core.specs.results import RayJobResult as RayJobResult
    from plugin_core.specs.results import RetrainResult as RetrainResult
    from plugin_core.specs.results import StepResult as StepResult
    from plugin_core.specs.results import TrainResult as TrainResult
    from plugin_core.specs.results import TuneResult as TuneResult
    from plugin_core.specs.tracking import Tracker as Tracker
    from plugin_core.storage.threads import Threads as Threads
    from plugin_core.storage.threads import in_background as in_background
    from plugin_core.storage.threads import in_own_loop as in_own_loop
    from plugin_core.storage.threads import in_thread as in_thread
    from plugin_core.storage.threads import run_sync as run_sync
    from plugin_core.supervisor.cancel import acancel as acancel
    from plugin_core.supervisor.cancel import cancel as cancel
    from plugin_core.supervisor.events import Event as Event
    from plugin_core.supervisor.events import Line as Line
    from plugin_core.supervisor.events import Log as Log
    from plugin_core.supervisor.generations import newest_run as newest_run
    from plugin_core.supervisor.progress import Reading as Reading
    from plugin_core.supervisor.report import effective_time_of as effective_time_of
    from plugin_core.supervisor.report import markdown_report as markdown_report
    from plugin_core.supervisor.report import metric_rows as metric_rows
    from plugin_core.supervisor.report import trial_rows as trial_rows
    from plugin_core.supervisor.supervisor import Supervisor as Supervisor
    from plugin_core.supervisor.supervisor import prepare as prepare

#: The names, by the module that defines them. A test compares this list with the imports above.
_PUBLIC = {
    "clusters.base": "Cluster LocalCluster RayCluster",
    "clusters.doctor": "describe_cluster",
    "clusters.fallback": "FallbackCluster",
    "clusters.find": "find_cluster find_fallback",
    "clusters.kuberay_json": "kuberay_from_json",
    "clusters.local_head": "how_to_open",
    "clusters.local_head_keeper": "free_ports",
    "clusters.processes": "wait_for_end",
    "clusters.secrets": "Secrets",
    "clusters.shared": "end_shared start_shared",
    "errors": "RayTrainWorkflowsError SpecError StepCancelledError StepError",
    "errors.plain_text": "markdown_text",
    "errors.shown": "did_you_mean shown",
    "registry.api": "CHAMPION promote rollback",
    "registry.base": "ModelVersion",
    "runs.directory": "RunDir run_name",
    "runs.history": "History",
    "runs.spec_record": "fields_fingerprint fingerprint make_record",
    "specs": "BatchInferSpec EvaluateSpec RayJobSpec RetrainSpec StepSpec TrainSpec TuneSpec as_spec",
    "specs.fields": "check_size",
    "specs.outcomes": "promoted",
    "specs.parts": "spec_datasets",
    "specs.ray_job": "call_arguments refuse_beside_a_call",
    "specs.references": "safe_link",
    "specs.results": "StepResult BatchInferResult EvaluationResult RayJobResult RetrainResult TrainResult TuneResult",
    "specs.tracking": "Tracker",
    "storage.threads": "Threads in_background in_own_loop in_thread run_sync",
    "supervisor.events": "Event Line Log",
    "supervisor.generations": "newest_run",
    "supervisor.progress": "Reading",
    "supervisor.report": "effective_time_of markdown_report metric_rows trial_rows",
    "supervisor.cancel": "acancel cancel",
    "supervisor.supervisor": "Supervisor prepare",
}
__all__, __getattr__ = lazy_exports(__name__, _PUBLIC)
