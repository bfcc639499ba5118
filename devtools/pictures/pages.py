"""The pages that Airflow, Prefect and MLflow show for real runs, photographed in a real browser.

The browser is the Chromium on PATH, driven by Playwright, which `make pictures` installs in build/browser. Each picture
waits for the words that it is meant to show, so a page that no longer shows them fails the build.
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

from PIL import Image
from prefect.client.orchestration import get_client

from devtools.chaos import Running, drivers, kill, wait_until
from devtools.pictures import flows
from devtools.pictures.terminals import ROOT, evaluation, training, workers
from devtools.prefect_server import prefect_server
from devtools.servers import mlflow_server
from plugin_core import LocalCluster, MLflow, RunConfig, TrainSpec
from plugin_core.clusters.local_head import Head
from plugin_core.runs.journal import read_reports

WIDTH = 1400
#: Flags to run as root and without network requests.
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
#: The flows of `devtools.pictures.flows` that are photographed, and words on the page.
SHOWN = {
    "killed": ("Completed", "was killed"),
    "gate": ("Completed", "failed: accuracy"),
    "wrong": ("Failed", flows.MISTAKE),
}
DAGS = """
from airflow.sdk import dag

from airflow_provider.operators import RayEvaluateOperator, RayTrainOperator

OPTIONS = {{"schedule": None, "default_args": {{"storage_path": {storage!r}}}}}


@dag(**OPTIONS)
def digits():
    train = RayTrainOperator(task_id="train", **{training!r})
    RayEvaluateOperator(task_id="evaluate", checkpoint=train.output, **{evaluation!r})


@dag(**OPTIONS)
def wrong():
    RayTrainOperator(task_id="train", **{wrong!r})


digits()
wrong()
"""


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A Playwright page in a headless Chromium."""
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
    """Put ten pictures of runs in `folder` on `head` into `images`."""
    with browser() as page:
        airflow(page, images, folder, head)
        prefect(page, images, folder, head)
        mlflow(page, images, folder)


def shoot(page: Any, file: Path, *words: str, height: int = 900, kept: int | None = None) -> None:
    """Photograph the page once it shows all of `words`. `kept`: the height to keep, in pixels; the rest is cut off."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    for each in words:
        page.get_by_text(each).first.wait_for()
    page.wait_for_timeout(1000)  # let animations finish
    picture = picture_of(page)
    save(picture.crop((0, 0, picture.width, kept or picture.height)), file)


def picture_of(shown: Any) -> Image.Image:
    return Image.open(io.BytesIO(shown.screenshot()))


def save(picture: Image.Image, file: Path) -> None:
    """Save with 256 colours, which are enough for a page and take a third of the space."""
    picture.convert("RGB").quantize(256).save(file, optimize=True)


def airflow(page: Any, images: Path, folder: Path, head: Head) -> None:
    """The form of a connection; a training that waits in the triggerer, one of whose workers is killed; a failed gate;
    an exception in the user's loop."""
    from airflow_provider.testing import AirflowServer

    dags = folder / "dags"
    dags.mkdir()
    judge = {
        name: value for name, value in evaluation(folder, flows.TOO_MUCH).items() if name not in ("kind", "checkpoint")
    }
    source = DAGS.format(
        storage=str(folder / "airflow-runs"), training=training(flows.LONG), evaluation=judge, wrong=flows.WRONG
    )
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
        shoot(page, images / "killed-task.png", "Success", "was killed", "trained: ")
        page.goto(f"{run}/evaluate")
        shoot(page, images / "failed-gate.png", "Success", "failed: accuracy", height=640)
        run_id = server.trigger("wrong")
        server.wait("wrong", run_id)
        page.goto(f"{server.url}/dags/wrong/runs/{quote(run_id)}/tasks/train")
        shoot(page, images / "failed-task.png", "Failed", flows.MISTAKE, kept=620)  # Airflow's own frames follow


def connection_form(page: Any, url: str, file: Path) -> None:
    """Its two sections side by side; the form shows one at a time, and the first one initially."""
    page.set_viewport_size({"width": 1000, "height": 1800})
    page.goto(f"{url}/connections")
    page.get_by_role("button", name="Add Connection").click()
    form = page.get_by_role("dialog")
    form.locator("input[name=connection_id]").fill("ray_default")
    form.get_by_role("combobox").first.click()
    page.keyboard.type("Ray cluster")
    page.keyboard.press("Enter")
    parts = []
    for label in ("Host", "Storage path"):
        if label == "Storage path":
            form.get_by_text("Extra Fields", exact=True).click()
        form.get_by_text(label, exact=True).wait_for()
        page.wait_for_timeout(1000)  # it unfolds
        parts.append(picture_of(form))
    both = Image.new("RGB", (sum(part.width for part in parts) + 24, max(part.height for part in parts)), "white")
    both.paste(parts[0], (0, 0))
    both.paste(parts[1], (parts[0].width + 24, 0))
    save(both, file)


def prefect(page: Any, images: Path, folder: Path, head: Head) -> None:
    """Flow runs: a healthy one with the report of its training, one in which a worker is killed, one with a failed
    gate, and one in which the user's loop raises."""
    with prefect_server(folder / "prefect", ui=True) as url:
        ui, storage = url.removesuffix("/api"), str(folder / "prefect-runs")
        run = flow_run("digits", storage)
        page.goto(f"{ui}/runs/flow-run/{run}")
        shoot(page, images / "prefect-flow-run.png", "Completed", "workers started", height=1000)
        page.goto(f"{ui}/artifacts/artifact/{report_of(run)}")
        shoot(page, images / "prefect-report.png", "run directory", "loss", height=1000)
        for name, words in SHOWN.items():
            run = flow_run(name, storage, head if name == "killed" else None)
            # the evaluation's page, since its log would be below the training's
            page.goto(f"{ui}/runs/task-run/{last_task_of(run)}" if name == "gate" else f"{ui}/runs/flow-run/{run}")
            kept = {"gate": 1000, "wrong": 1430}.get(name)
            shoot(page, images / f"prefect-{name}.png", *words, height=1700, kept=kept)


def flow_run(name: str, storage: str, head: Head | None = None) -> str:
    """Run a flow of `devtools.pictures.flows` to its end; returns the run's id. With `head`, kills a worker there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "devtools.pictures.flows", name, storage], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    if head is not None:
        runs = Path(storage)
        wait_until(lambda: process.poll() is not None or [*runs.glob("*--killed*/checkpoint_*_000003")])
        kill(workers(head)[-1])
    process.wait()
    with get_client(sync_client=True) as client:
        newest = max(client.read_flow_runs(), key=lambda run: run.created)
    return str(newest.id)


def last_task_of(run: str) -> str:
    with get_client(sync_client=True) as client:
        found = [each for each in client.read_task_runs() if str(each.flow_run_id) == run]
    return str(max(found, key=lambda task: task.created).id)


def report_of(run: str) -> str:
    """The id of the report of the flow run's training."""
    with get_client(sync_client=True) as client:
        found = [each for each in client.read_artifacts() if str(each.flow_run_id) == run]
    (report,) = [each for each in found if (each.key or "").endswith("-train-report")]
    return str(report.id)


def mlflow(page: Any, images: Path, folder: Path) -> None:
    """A training whose driver is killed twice: one run, with each of its forty steps once."""
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
        page.get_by_role("button", name="Close").first.click()  # MLflow's assistant
        page.get_by_placeholder("Search metric charts").fill("loss")
        shoot(page, images / "mlflow-run.png", "digits (loss)", height=640)
