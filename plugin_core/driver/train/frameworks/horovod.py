"""Horovod on Ray Train V2. Ray's HorovodTrainer supports only V1, so this is our own backend: each worker gets its rank in
Horovod's world and the address of a rendezvous server, which runs in Ray Train's controller. `hvd.init()` in the loop does
the rest, over gloo (and NCCL on GPUs if Horovod was built with it)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ray.train.backend import Backend, BackendConfig

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.specs import TrainSpec


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(
        inputs.train_loop,
        train_loop_config=inputs.train_loop_config,
        backend_config=HorovodConfig(),
        **inputs.for_trainer(),
    )


class HorovodBackend(Backend):
    share_cuda_visible_devices = True

    def __init__(self) -> None:
        self._rendezvous: Any = None

    def on_start(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        import ray
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        # Ray and Horovod both number the workers node by node
        nodes = [worker.metadata.node_id for worker in worker_group.get_workers()]
        hosts = ",".join(f"{node}:{nodes.count(node)}" for node in dict.fromkeys(nodes))
        plan = get_host_assignments(parse_hosts(hosts), len(nodes))
        self._rendezvous = RendezvousServer(verbose=0)
        common = {
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self._rendezvous.start()),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": ray.util.get_node_ip_address(),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
        self._rendezvous.init(plan)
        ray.get(
            [worker_group.execute_single_async(slot.rank, _set_environment, {**common, **_place(slot)}) for slot in plan]
        )

    def on_shutdown(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        if self._rendezvous is not None:
            self._rendezvous.stop()
            self._rendezvous = None


@dataclass
class HorovodConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[HorovodBackend]:
        return HorovodBackend


def _place(slot: Any) -> dict[str, str]:
    """A worker's rank in the world, as the environment variables that Horovod reads."""
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname")
    return {f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in names}


def _set_environment(variables: dict[str, str]) -> None:
    """In a worker: set the variables; gloo uses the network interface that Ray uses on this node."""
    import psutil
    import ray

    address = ray.util.get_node_ip_address()
    for interface, addresses in psutil.net_if_addrs().items():
        if address in (known.address for known in addresses):
            variables = {"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface, **variables}
    os.environ.update(variables)
