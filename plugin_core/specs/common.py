"""Common parts of specs: run config, limits, datasets and workers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, Strict, model_validator

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs.base import Model
from plugin_core.specs.fields import (
    Amount,
    Count,
    Flag,
    Grace,
    Name,
    Names,
    Plain,
    Processes,
    Seconds,
    Seed,
    Share,
    Text,
    Tries,
    Whole,
)
from plugin_core.specs.function_arguments import check_arguments
from plugin_core.specs.function_field import Callbacks, Function
from plugin_core.specs.json_values import RESULT, TEXT, also
from plugin_core.specs.references import check_run_name
from plugin_core.specs.runtime_env import RuntimeEnv
from plugin_core.storage.described import uri_of
from plugin_core.storage.location import normalise

#: our default → why it differs from Ray's
DEPARTURES = {
    "FailureConfig.max_failures": "3, not 0: a lost worker should cost one checkpoint interval, not the step",
    "CheckpointConfig.local_tier": "checkpoints on the nodes, which Ray Train does not have",
    "FailureConfig.nccl_hang": "a field for Ray's variables RAY_TRAIN_NCCL_RAS_…",
    "TorchConfig.fault_tolerance": "a field for Ray's `TorchftConfig`",
    "TorchConfig.lighthouse": "its `lighthouse_kwargs`",
    "RunConfig.name": "required, not a timestamp: the name is the run's identity, by which a retry resumes it",
}

SCHEMA = 1
#: A local path (made absolute) or a URI.
Place = Annotated[str, Strict(), AfterValidator(normalise)]
Places = Annotated[list[Place], Field(min_length=1)]


def _known_framework(name: str) -> str:
    from plugin_core.specs.frameworks import framework

    try:
        return framework(name).name
    except SpecError as exc:
        raise ValueError(exc.message.removeprefix("framework: ")) from None


#: The name of a framework, built in or a plugin's.
Framework = Annotated[str, Strict(), AfterValidator(_known_framework)]


class ScalingConfig(Model):
    """The number of workers and their resources (`ray.train.ScalingConfig`)."""

    num_workers: Processes = Field(1, description="workers; a pair is an elastic range")
    use_gpu: Flag = Field(False, description="each worker gets a GPU")
    resources_per_worker: dict[Name, Amount] | None = Field(
        None, description="per worker; GPUs may be fractional. None: 1 GPU with `use_gpu`, else 1 CPU"
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="how workers spread over nodes"
    )
    accelerator_type: Name | None = Field(None, description="only on nodes with this accelerator")
    label_selector: dict[Name, Text] | None = Field(None, description="only on nodes with these labels")
    elastic_resize_monitor_interval_s: Seconds = Field(60.0, description="how often an elastic training looks for room")

    @property
    def worker_range(self) -> tuple[int, int]:
        return self.num_workers if isinstance(self.num_workers, tuple) else (self.num_workers, self.num_workers)

    def worker_resources(self) -> dict[str, float]:
        """The resources of one worker; Ray's default: 1 CPU, or 1 GPU if `use_gpu`."""
        given = {key: value for key, value in (self.resources_per_worker or {}).items() if value}
        if self.use_gpu:
            given.setdefault("GPU", 1.0)
        elif not given:
            given["CPU"] = 1.0
        return given


class LocalTier(Model):
    """Checkpoints that stay on the workers' nodes, so that most of them need not go to storage. Each one is copied to a
    folder on its node and, in the background, to another node. Every `storage_every`th one goes to storage in the
    background, and the last one does before the training ends."""

    storage_every: Count = Field(10, description="one of this many checkpoints goes to storage")
    peer: Flag = Field(True, description="a second node keeps a copy of each node's, in case the node is lost")
    folder: Text | None = Field(
        None, description="where on each node, an absolute path. None: in its folder for temporary files"
    )

    @model_validator(mode="after")
    def _absolute(self) -> Self:
        if self.folder is not None and not self.folder.startswith("/"):
            raise ValueError(f"folder: got {shown(self.folder)}; expected an absolute path, such as '/mnt/nvme'")
        return self


class CheckpointConfig(Model):
    num_to_keep: Count | None = Field(None, description="how many checkpoints stay; None: all")
    checkpoint_score_attribute: Name | None = Field(
        None, description="the reported metric that ranks checkpoints; None: the newest are best"
    )
    checkpoint_score_order: Literal["max", "min"] = Field("max", description="whether a higher or a lower score is better")
    local_tier: LocalTier | None = Field(
        None, description="keep checkpoints on the nodes, and only some of them on storage"
    )


class NcclHang(Model):
    """Ray Train's hang detection with NCCL RAS (needs NCCL 2.24 or newer, and `ncclras` on the workers' nodes)."""

    action: Literal["observe", "fail"] = Field(
        "observe", description="`observe`: log the hang and keep all stacks; `fail`: also restart from the checkpoint"
    )
    confirm_duration_s: Seconds = Field(600.0, description="no progress of a collective for this long is a hang")
    min_poll_interval_s: Seconds = Field(15.0, description="between two looks")


class FailureConfig(Model):
    """How many lost workers one attempt survives; preemptions are counted separately."""

    max_failures: Tries = Field(
        3, description="lost workers survived within one job; -1: no limit. Your function's exception is never retried"
    )
    controller_failure_limit: Tries = Field(-1, description="the same for Ray Train's controller")
    max_preemption_failures: Tries = Field(-1, description="the same for workers lost to a preemption")
    relax_collectives_on_preemption: Flag = Field(
        False, description="let surviving workers commit a checkpoint without the lost ones"
    )
    preemption_grace_s: Grace = Field(0.0, description="how long they may go on after the deadline of the preemption")
    nccl_hang: NcclHang | None = Field(None, description="watch NCCL's collectives for a hang; on GPUs")


class RunConfig(Model):
    """Which run it is, and what is kept of it. `name` and `storage_path` together identify the run."""

    name: Text | None = Field(
        None, description="the run's identity in its storage, under which a retry resumes it; the engines derive one"
    )
    storage_path: Place | None = Field(None, description="where runs are kept. None: `RAY_STORAGE`, then `~/ray_results`")
    checkpoint_config: CheckpointConfig = Field(CheckpointConfig(), description="which checkpoints stay")
    failure_config: FailureConfig = Field(FailureConfig(), description="how many failures one job survives")
    callbacks: Callbacks = Field(
        [], description="your `ray.train.UserCallback`s, or what makes them; they run in the driver"
    )
    worker_runtime_env: RuntimeEnv | None = Field(None, description="Ray's `runtime_env` for the workers alone")

    @model_validator(mode="before")
    @classmethod
    def _filesystem(cls, value: Any) -> Any:
        """Accept Ray's `storage_filesystem` with a path on it; the spec keeps a URI that rebuilds the filesystem."""
        if not isinstance(value, dict) or value.get("storage_filesystem") is None:
            return value
        given = {name: item for name, item in value.items() if name != "storage_filesystem"}
        if not isinstance(path := given.get("storage_path"), str) or "://" in path:
            raise ValueError(f"storage_path: got {shown(path)} with storage_filesystem; expected a path on that filesystem")
        try:
            return {**given, "storage_path": uri_of(value["storage_filesystem"], path)}
        except ValueError as exc:
            raise ValueError(f"storage_filesystem: {exc}") from None

    @model_validator(mode="after")
    def _name(self) -> Self:
        if self.name is not None:
            check_run_name("name", self.name)
        return self


class Limits(Model):
    """Timeouts (seconds), retries and storage limits. None: no limit."""

    timeout_s: Seconds | None = Field(None, description="the whole step, over all attempts")
    scheduling_timeout_s: Seconds | None = Field(None, description="waiting for the cluster's resources")
    max_attempts: Count = Field(3, description="Ray jobs per call: one, plus restarts after infrastructure failures")
    heartbeat_ttl_s: Seconds = Field(30.0, description="a heartbeat that has not changed for this long counts as silent")
    unreachable_timeout_s: Seconds | None = Field(
        None,
        description="with a silent heartbeat, then start elsewhere; None: 300 s for another host's embedded head",
    )
    orphan_timeout_s: Seconds | None = Field(None, description="the driver stops after this time without an orchestrator")
    artifact_bytes: Whole = Field(256 * 2**20, description="total size of a worker's files that are kept (`artifacts`)")


#: Dataset format → the file extensions that imply it.
FORMATS = {
    "parquet": ("parquet",),
    "csv": ("csv",),
    "json": ("json", "jsonl"),
    "text": ("txt",),
    "numpy": ("npy",),
    "images": (),
    "webdataset": ("tar",),
    "tfrecords": ("tfrecords", "tfrecord"),
    "avro": ("avro",),
    "huggingface": (),
}

#: Extensions of compressed files, behind that of the format.
COMPRESSED = (".gz", ".zst")

#: Dataset format → the package that Ray Data reads it with, and the extra that installs it.
FORMAT_PACKAGES = {"tfrecords": ("tensorflow", "tensorflow"), "avro": ("fastavro", "avro")}


#: What `resource_limits` may name, as in `ray.data.ExecutionResources`.
READING_RESOURCES = ("CPU", "GPU", "object_store_memory", "memory")


class SplitConfig(Model):
    """One part of the rows: "test" gets a share of about `test_size`, "train" the rest. A hash of the row's content (or
    of the columns in `by`) and the `seed` decides, so the two parts of one source never share a row, even in different
    steps, on different clusters, or after rows were added. Equal rows stay together. (Set `by` if two steps read
    different columns.)"""

    part: Literal["train", "test"] = Field(description="which part this is")
    test_size: Share = Field(description="the test part's share of the rows")
    seed: Seed = Field(0, description="another seed, another split")
    by: Names | None = Field(None, description="columns whose equal values stay together; None: the whole row")


class DatasetConfig(Model):
    """A Ray Dataset by path and format, or by a function that returns one. Short forms: a path, a function, or the
    result of a batch inference."""

    model_config = ConfigDict(json_schema_extra=also(TEXT, RESULT))

    path: Place | Places | None = Field(None, description="files or folders; give this or `function`")
    format: Literal[tuple(FORMATS)] | None = Field(None, description="None: by the file extension")  # type: ignore[valid-type]
    columns: Names | None = Field(None, description="read or keep only these")
    function: Function | None = Field(None, description="returns a Ray Dataset; called in the driver")
    kwargs: Plain = Field({}, description="arguments of `function`")
    version: Text | None = Field(
        None,
        description="your name for the data's state, by which a retraining sees new data. None: files' names, sizes, times",
    )
    split: SplitConfig | None = Field(None, description="one part of the rows")
    shuffle_seed: Seed | None = Field(None, description="shuffle the rows, in the same order each time")
    materialize: Flag = Field(False, description="read once and keep in the object store, instead of once an epoch")
    reshuffle: Flag = Field(False, description="with `shuffle_seed`: in another order each epoch, by the seed")
    shard: Flag = Field(True, description="in a training: each worker gets a share of the rows, else all of them")
    preserve_order: Flag = Field(False, description="in a training: rows come in the order of the data; always with a seed")
    resource_limits: dict[Name, Amount] | None = Field(
        None, description="in a training: the most that reading may use (CPU, GPU, object_store_memory, memory)"
    )
    label_selector: dict[Name, Text] | None = Field(None, description="in a training: read only on nodes with these labels")
    resumable: Flag = Field(
        False, description="in a training: resumed at the row, by `rows.from_dataset_shard`; kept in the object store"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """Accept a string as a path, a callable as a function, and a batch inference's result as its output."""
        if getattr(value, "kind", None) == "batch_infer":
            value = value.model_dump()
        if isinstance(value, dict) and value.get("kind") == "batch_infer":
            if not isinstance(value.get("output"), str):
                raise ValueError("path: the batch_infer result given has no output")
            return {"path": value["output"], "format": value.get("format", "parquet")}
        return {"path": value} if isinstance(value, str) else {"function": value} if callable(value) else value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.function is None):
            raise ValueError("path: got neither or both of path and function; expected exactly one")
        if self.path is not None and self.format is None and self.guessed_format is None:
            raise ValueError(f"format: missing, and not implied by {self.path!r}; expected {', '.join(FORMATS)}")
        if self.function is not None:
            check_arguments("kwargs", self.kwargs, self.function)
        return self

    @model_validator(mode="after")
    def _reading(self) -> Self:
        if self.reshuffle and self.shuffle_seed is None:
            raise ValueError("reshuffle: got True without shuffle_seed; expected a seed")
        if self.reshuffle and self.materialize:
            raise ValueError("reshuffle: got True with materialize, which shuffles once; expected one of them")
        if self.resumable and not self.shard:
            raise ValueError("resumable: got True with shard=False; expected one of the two")
        if self.resumable and self.shuffle_seed is not None:
            raise ValueError("resumable: got True with a shuffle_seed; expected the seed of rows.from_dataset_shard")
        if unknown := sorted(set(self.resource_limits or {}) - set(READING_RESOURCES)):
            raise ValueError(f"resource_limits: got {shown(unknown[0])}; expected {', '.join(READING_RESOURCES)}")
        return self

    @property
    def guessed_format(self) -> str | None:
        first = self.path[0] if isinstance(self.path, list) else self.path or ""
        name = first.split("?")[0].rstrip("/").lower()
        for ending in COMPRESSED:
            name = name.removesuffix(ending)
        suffix = name.rsplit(".", 1)[-1]
        return self.format or next((name for name, endings in FORMATS.items() if suffix in endings), None)
