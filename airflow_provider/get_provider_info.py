"""The provider's metadata, which Airflow reads without importing the rest."""

from __future__ import annotations

from typing import Any

NAME = "Ray Train"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "ray-train-workflows",
        "name": NAME,
        "description": "Work on Ray as a task: train, evaluate, batch inference, any function or command.",
        "integrations": [{"integration-name": NAME, "external-doc-url": "https://docs.ray.io", "tags": ["software"]}],
        "operators": [{"integration-name": NAME, "python-modules": ["airflow_provider.operators"]}],
        "hooks": [{"integration-name": NAME, "python-modules": ["airflow_provider.hooks"]}],
        "triggers": [{"integration-name": NAME, "python-modules": ["airflow_provider.triggers"]}],
        "task-decorators": [
            {"name": "ray", "class-name": "airflow_provider.decorators.ray_task"},
            {"name": "ray_train", "class-name": "airflow_provider.decorators.ray_train_task"},
        ],
        "extra-links": ["airflow_provider.links.RayJobLink", "airflow_provider.links.RayTrackingLink"],
        "connection-types": [
            {
                "connection-type": "rayjobs",
                "hook-class-name": "airflow_provider.hooks.RayJobsHook",
                "hook-name": "Ray cluster (Jobs API)",
                "ui-field-behaviour": {
                    "hidden-fields": ["login", "extra"],
                    "relabeling": {"password": "Token", "schema": "Scheme"},
                    "placeholders": {
                        "host": "ray-head, or http://ray-head:8265",
                        "port": "8265",
                        "schema": "http",
                        "password": "the cluster's Ray auth token",
                    },
                },
                "conn-fields": {
                    "storage_path": {
                        "label": "Storage path",
                        "description": "Where runs are stored by default: s3://bucket/prefix, or a folder"
                        " that Airflow and the cluster share",
                        "schema": {"type": ["string", "null"]},
                    },
                    "namespace": {
                        "label": "Namespace",
                        "description": "Prefix of run names, if several Airflow deployments share a storage path",
                        "schema": {"type": ["string", "null"]},
                    },
                    "dashboard_url": {
                        "label": "Public dashboard URL",
                        "description": "The Ray dashboard's address for browsers, used in links, if not Host",
                        "schema": {"type": ["string", "null"], "format": "url"},
                    },
                    "verify": {
                        "label": "TLS verification",
                        "description": "true, false, or the path of a CA file",
                        "schema": {"type": ["string", "null"]},
                    },
                    "cert": {
                        "label": "Client certificate",
                        "description": "The path of a PEM file with a certificate and its key, for mutual TLS",
                        "schema": {"type": ["string", "null"]},
                    },
                    "headers": {
                        "label": "HTTP headers",
                        "description": "A JSON object, sent with every request",
                        "schema": {"type": ["string", "null"], "format": "json"},
                    },
                    "env_vars": {
                        "label": "Environment variables",
                        "description": "A JSON object, set in every job: credentials of trackers and storage",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "env_files": {
                        "label": "Files named by environment variables",
                        "description": "A JSON object, variable to file content, for every job: credentials files",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "kuberay": {
                        "label": "KubeRay",
                        "description": "A JSON object: the fields of a KubeRayCluster, for one cluster per run",
                        "schema": {"type": ["string", "null"], "format": "json"},
                    },
                    "after_s": {
                        "label": "Move on after (seconds)",
                        "description": "For the first of several connections: when a step goes to the next one",
                        "schema": {"type": ["number", "null"]},
                    },
                    "ship_package": {
                        "label": "Ship the package",
                        "description": "ray-train-workflows is not installed on the cluster: each job brings it",
                        "schema": {"type": ["boolean", "null"], "default": False},
                    },
                    "autoscaling": {
                        "label": "Autoscaling",
                        "description": "Nodes can be added: a step that does not fit now waits instead of being rejected",
                        "schema": {"type": ["boolean", "null"], "default": False},
                    },
                },
            }
        ],
    }
