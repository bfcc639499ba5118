"""python -m devtools.kuberay_schema CRD FILE: the fields of KubeRay's RayCluster v1, and their types, from its CRD.

`CRD` is KubeRay's ray.io_rayclusters.yaml. The schema in `FILE` validates a RayCluster as the API server would, and
rejects unknown fields, which the API server silently drops. Parts of a pod that our manifests do not use accept
anything.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

KEPT = ("type", "required", "enum", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
ANYTHING = {
    *("status", "affinity", "volumes", "initContainers", "ephemeralContainers", "lifecycle", "livenessProbe"),
    *("readinessProbe", "startupProbe", "securityContext", "topologySpreadConstraints", "dnsConfig", "resourceClaims"),
    *("headService", "tolerations", "readinessGates", "schedulingGates", "volumeDevices", "gcsFaultToleranceOptions"),
}


def fields(schema: dict[str, Any]) -> dict[str, Any]:
    found = {name: schema[name] for name in KEPT if name in schema}
    if isinstance(items := schema.get("items"), dict):
        found["items"] = fields(items)
    if isinstance(values := schema.get("additionalProperties"), dict):
        found["additionalProperties"] = fields(values)
    if isinstance(properties := schema.get("properties"), dict):
        found["properties"] = {name: {} if name in ANYTHING else fields(each) for name, each in sorted(properties.items())}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    return found


def main(crd: Path, file: Path) -> None:
    (version,) = (each for each in yaml.safe_load(crd.read_text())["spec"]["versions"] if each["name"] == "v1")
    file.write_text(json.dumps(fields(version["schema"]["openAPIV3Schema"]), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
