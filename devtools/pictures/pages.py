"""The pages that Airflow, Prefect and MLflow show of real runs, photographed in a real browser.

The browser is the Chromium on PATH, driven by Playwright, which `make pictures` installs in build/browser. Each picture
waits for the words that it is there to show, so a page that no longer shows them fails the build.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from devtools.chaos import Running, drivers, kill, wait_until
from devtools.pictures.terminals import ROOT, STEPS, data, training, workers
from devtools.prefect_server import prefect_server
from devtools.servers import mlflow_server
from plugin_core import LocalCluster, MLflow, RunConfig, TrainSpec
from plugin_core.clusters.local_head import Head
from plugin_core.runs.journal import read_reports

WIDTH = 1400
#: As root, and without asking anything of the network.
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DAG = """
from airflow.sdk import dag

from airflow_provider.operators import RayEvaluateOperator, RayTrainOperator


@dag(schedule=None, default_args={{"storage_path": {storage!r}}})
def digits():
    train = RayTrainOperator(task_id="train", **{training!r})
    RayEvaluateOperator(task_id="evaluate", checkpoint=train.output, **{evaluation!r})


digits()
"""


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A page of Playwright's in a headless Chromium."""
    sys.path.append(str(ROOT / "build" / "browser"))
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise FileNotFoundError("chromium is not on PATH: `apt-get install chromium`")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        context = opened.new_context(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        context.set_default_timeout(120_000)
        yield context.new_page()
        opened.close()


def photograph(images: Path, folder: Path, head: Head) -> None:
    """Seven pictures in `images`, of runs in `folder` on `head`."""
    with browser() as page:
        airflow(page, images, folder, head)
        prefect(page, images, folder)
        mlflow(page, images, folder)


def shoot(page: Any, file: Path, *words: str, height: int = 900) -> None:
    """The page as it is once it shows all of `words`."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    for each in words:
        page.get_by_text(each).first.wait_for()
    page.wait_for_timeout(1000)  # what moves in, has moved in
    page.screenshot(path=str(file))


def airflow(page: Any, images: Path, folder: Path, head: Head) -> None:
    """The form of a connection; a training that waits in the triggerer, of which a worker is killed; a failed gate."""
    from airflow_provider.testing import AirflowServer

    judge = {"evaluate": f"{STEPS}:evaluate", "dataset": data("test"), "thresholds": {"accuracy": {"min": 0.999}}}
    dags = folder / "dags"
    dags.mkdir()
    source = DAG.format(storage=str(folder / "airflow-runs"), training=training(60), evaluation=judge)
    (dags / "digits.py").write_text(source)
    with AirflowServer(folder / "airflow", dags, {"PYTHONPATH": str(ROOT)}) as server:
        run_id = server.trigger("digits")
        connection_form(page, server.url, images / "connection-form.png")
        run = f"{server.url}/dags/digits/runs/{quote(run_id)}/tasks"
        server.wait_for_task("digits", run_id, "train", {"deferred"})
        page.goto(f"{run}/train")
        shoot(page, images / "running-task.png", "Deferred", "epoch=")
        kill(workers(head)[-1])
        server.wait("digits", run_id)
        page.goto(f"{run}/train")
        page.get_by_text("was killed").first.scroll_into_view_if_needed()
        shoot(page, images / "killed-task.png", "Success", "was killed")
        page.goto(f"{run}/evaluate")
        shoot(page, images / "failed-gate.png", "Success", "failed: accuracy", height=640)


def connection_form(page: Any, url: str, file: Path) -> None:
    """Its two sections side by side; the form opens one at a time."""
    from PIL import Image

    page.set_viewport_size({"width": WIDTH, "height": 1400})
    page.goto(f"{url}/connections")
    page.get_by_role("button", name="Add Connection").click()
    form = page.get_by_role("dialog")
    form.locator("input[name=connection_id]").fill("ray_default")
    form.get_by_role("combobox").first.click()
    page.keyboard.type("Ray cluster")
    page.keyboard.press("Enter")
    parts = []
    for section in ("Standard Fields", "Extra Fields"):
        form.get_by_text(section, exact=True).click()
        page.wait_for_timeout(1000)  # it unfolds
        parts.append(Image.open(io.BytesIO(form.screenshot())))
    both = Image.new("RGB", (sum(part.width for part in parts) + 24, max(part.height for part in parts)), "white")
    both.paste(parts[0], (0, 0))
    both.paste(parts[1], (parts[0].width + 24, 0))
    both.save(file)


def prefect(page: Any, images: Path, folder: Path) -> None:
    """The flow of `make demo`: its page with timeline and log, and the report of its training."""
    from prefect.client.orchestration import get_client

    with prefect_server(folder / "prefect", ui=True) as url:
        flow = [sys.executable, "-m", "example_flows.digits", str(folder / "prefect-runs")]
        subprocess.run(flow, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with get_client(sync_client=True) as client:
            (run,) = client.read_flow_runs()
            (report,) = [each for each in client.read_artifacts() if (each.key or "").endswith("-train-report")]
        pages = url.removesuffix("/api")
        page.goto(f"{pages}/runs/flow-run/{run.id}")
        shoot(page, images / "prefect-flow-run.png", "Completed", "workers started", height=1000)
        page.goto(f"{pages}/artifacts/artifact/{report.id}")
        shoot(page, images / "prefect-report.png", "run directory", "loss", height=1000)


def mlflow(page: Any, images: Path, folder: Path) -> None:
    """A training whose driver is killed twice: one run, each of its forty steps once."""
    with mlflow_server(folder / "mlflow") as url:
        spec = TrainSpec.model_validate(
            {
                **training(40),
                "run_config": RunConfig(name="digits", storage_path=str(folder / "mlflow-runs")),
                "tracking": [MLflow(tracking_uri=url, experiment_name="digits")],
            }
        )
        running = Running(spec, LocalCluster())
        for reports in (13, 26):
            wait_until(lambda reports=reports: running.done() or len(list(read_reports(running.rundir))) >= reports)
            (driver,) = drivers(running.rundir.uri)
            kill(driver)
        result = running.result()
        if result.run.attempt != 3:
            raise RuntimeError(f"the run took {result.run.attempt} attempts; expected 3")
        page.goto(f"{result.tracking['mlflow']}/model-metrics")
        shoot(page, images / "mlflow-run.png", "Model metrics (2)", height=640)
