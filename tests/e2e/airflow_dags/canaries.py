"""The canaries' chain in Airflow; the DAG run says what should fail and where the runs are kept."""

from airflow.sdk import dag

from airflow_provider.operators import RayBatchInferOperator, RayEvaluateOperator, RayTrainOperator
from tests.support.canary_steps import evaluate_fields, infer_fields, train_fields

STORAGE, ROWS = "{{ dag_run.conf['storage'] }}", "{{ dag_run.conf['rows'] }}"
CHECKPOINT = "{{ ti.xcom_pull('train') }}"


def chain(what):
    @dag(dag_id=f"canaries_{what}", schedule=None, default_args={"ray_conn_id": "canaries"})
    def canaries():
        # the one deferred, the others not
        train = RayTrainOperator(task_id="train", spec=train_fields(what, STORAGE))
        scored = RayEvaluateOperator(task_id="evaluate", deferrable=False, spec=evaluate_fields(CHECKPOINT, STORAGE, ROWS))
        infer = RayBatchInferOperator(task_id="infer", deferrable=False, spec=infer_fields(CHECKPOINT, STORAGE, ROWS))
        train >> scored >> infer

    canaries()


for what in ("chain", "submit", "loop", "cancel"):
    chain(what)
