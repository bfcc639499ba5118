"""The part of Kubernetes' API that a RayCluster needs, through the official client; its errors are translated here."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from plugin_core.errors import ClusterRefusedError, ClusterUnreachableError, SpecError
from plugin_core.specs.extras import require

GROUP, VERSION, PLURAL = "ray.io", "v1", "rayclusters"
#: Kueue's API for pending workloads.
VISIBILITY = "visibility.kueue.x-k8s.io"
#: Seconds to connect, and to read a response.
TIMEOUT_S = (10, 30)
LOG_LINES = 40


class NoSuchResourceError(ClusterUnreachableError):
    """Kubernetes responded that the resource does not exist."""


class Kubernetes:
    """RayCluster resources in one namespace. All methods block, and raise ClusterUnreachableError, ClusterRefusedError or
    SpecError."""

    def __init__(self, namespace: str, kubeconfig: str | None = None, context: str | None = None):
        require("cluster", "KubeRayCluster", "kubernetes", "kuberay")
        import yaml
        from kubernetes import client, config

        self.namespace = namespace
        try:
            if kubeconfig is None and context is None:
                with contextlib.suppress(config.ConfigException):
                    configuration = client.Configuration()
                    config.load_incluster_config(client_configuration=configuration)
                    self._use(client.ApiClient(configuration))
                    return
            self._use(config.new_client_from_config(kubeconfig, context))
        except (config.ConfigException, OSError) as exc:
            raise SpecError(
                f"kubeconfig: got {kubeconfig!r} (context {context!r}): {exc}; expected a readable kubeconfig, or"
                " none inside a pod"
            ) from exc
        except (yaml.YAMLError, TypeError):  # whose messages may quote a line of the file, with a token
            raise SpecError(f"kubeconfig: got {kubeconfig!r}, which is not a kubeconfig; expected one in YAML") from None

    def _use(self, api: Any) -> None:
        from kubernetes import client

        # the client has no method for a custom resource's subresources; names contain no slashes
        api.configuration.safe_chars_for_path_param = "/"
        self._objects, self._core = client.CustomObjectsApi(api), client.CoreV1Api(api)

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        where = f"{what} in namespace {self.namespace!r}"
        try:
            yield
        except ApiException as exc:
            said = _message(exc)
            if exc.status in (401, 403):
                raise ClusterRefusedError(f"cluster: Kubernetes forbids {where} ({said})") from exc
            if exc.status in (400, 422):
                raise SpecError(f"manifest: Kubernetes rejects it: {said}") from exc
            if exc.status == 404:
                raise NoSuchResourceError(f"cluster: Kubernetes cannot {where}: {said}") from exc
            raise ClusterUnreachableError(f"cluster: Kubernetes cannot {where} ({exc.status}: {said})") from exc
        except (HTTPError, OSError) as exc:
            raise ClusterUnreachableError(f"cluster: Kubernetes does not respond to {where}: {exc}") from exc

    def get(self, name: str) -> dict[str, Any] | None:
        with contextlib.suppress(NoSuchResourceError), self._translated(f"get rayclusters/{name}"):
            found: dict[str, Any] = self._objects.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, _request_timeout=TIMEOUT_S
            )
            return found
        return None

    def list(self, selector: str) -> list[dict[str, Any]]:
        try:
            with self._translated("list rayclusters"):
                answer = self._objects.list_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, label_selector=selector, _request_timeout=TIMEOUT_S
                )
        except NoSuchResourceError as exc:
            raise ClusterRefusedError(
                f"cluster: this Kubernetes has no {PLURAL}.{GROUP}/{VERSION}; expected one with KubeRay's operator"
            ) from exc
        return list(answer["items"])

    def create(self, body: dict[str, Any]) -> None:
        """Create a cluster; succeeds if one of that name already exists."""
        from kubernetes.client import ApiException

        with self._translated("create rayclusters"):
            try:
                self._objects.create_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, body, _request_timeout=TIMEOUT_S
                )
            except ApiException as exc:
                if exc.status != 409:
                    raise

    def annotate(self, name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> dict[str, Any] | None:
        """Replace a cluster's annotations with `change`'s result; returns the cluster, or None if it is gone.

        Read and replaced rather than patched: the client's patch type depends on its version.
        """
        from kubernetes.client import ApiException

        while (found := self.get(name)) is not None:
            before = dict(found["metadata"].get("annotations") or {})
            found["metadata"]["annotations"] = after = change(before)
            if after == before:
                return found
            with contextlib.suppress(NoSuchResourceError), self._translated(f"update rayclusters/{name}"):
                try:
                    replaced: dict[str, Any] = self._objects.replace_namespaced_custom_object(
                        GROUP, VERSION, self.namespace, PLURAL, name, found, _request_timeout=TIMEOUT_S
                    )
                    return replaced
                except ApiException as exc:
                    if exc.status != 409:  # 409: it has changed since it was read
                        raise
        return None

    def delete(self, name: str, version: str | None = None) -> None:
        """Delete a cluster, its pods first, if it exists; with `version`, only if that is its current version."""
        from kubernetes.client import ApiException, V1DeleteOptions, V1Preconditions

        only = V1Preconditions(resource_version=version) if version else None
        options = V1DeleteOptions(propagation_policy="Foreground", preconditions=only)
        with contextlib.suppress(NoSuchResourceError), self._translated(f"delete rayclusters/{name}"):
            try:
                self._objects.delete_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, name, body=options, _request_timeout=TIMEOUT_S
                )
            except ApiException as exc:
                if not (version and exc.status == 409):
                    raise

    def pending_workloads(self, queue: str) -> Sequence[dict[str, Any]]:
        """The workloads pending in a Kueue LocalQueue, from its visibility API."""
        with self._translated(f"list the pending workloads of localqueues/{queue}"):
            answer = self._objects.list_namespaced_custom_object(
                VISIBILITY, "v1beta1", self.namespace, f"localqueues/{queue}/pendingworkloads", _request_timeout=TIMEOUT_S
            )
        return tuple(answer["items"])

    def token(self, secret: str) -> str:
        """The cluster's token in a Secret. Raises ClusterRefusedError if it has none."""
        with self._translated(f"get secrets/{secret}"):
            found = self._core.read_namespaced_secret(secret, self.namespace, _request_timeout=TIMEOUT_S).data or {}
        try:
            return base64.b64decode(found["auth_token"], validate=True).decode()
        except (KeyError, ValueError):
            raise ClusterRefusedError(
                f"cluster: Secret {self.namespace}/{secret} has no token; expected one as auth_token, base64-encoded"
            ) from None

    def explain(self, name: str, found: dict[str, Any] | None) -> str:
        """Why a cluster is not ready, according to Kubernetes: its conditions, its head pod and the end of its log."""
        status = (found or {}).get("status") or {}
        said = [
            f"{each['type']}: {each.get('message') or each.get('reason')}"
            for each in status.get("conditions") or []
            if each.get("message") or each.get("reason")
        ]
        said += [str(status["reason"])] if status.get("reason") else []
        try:
            with self._translated("list pods"):
                selector = f"ray.io/cluster={name},ray.io/node-type=head"
                pods = self._core.list_namespaced_pod(
                    self.namespace, label_selector=selector, _request_timeout=TIMEOUT_S
                ).items
            for pod in pods:
                said.append(f"head pod {pod.metadata.name} is {pod.status.phase}{_waiting(pod)}")
                said.append(self._log(pod.metadata.name))
            if not pods:
                said.append("there is no head pod (is KubeRay's operator running?)")
        except (ClusterUnreachableError, ClusterRefusedError, SpecError) as exc:
            said.append(exc.message)
        return "; ".join(said)

    def _log(self, pod: str) -> str:
        from kubernetes.client import ApiException

        try:
            log = self._core.read_namespaced_pod_log(pod, self.namespace, tail_lines=LOG_LINES, _request_timeout=TIMEOUT_S)
        except ApiException as exc:  # a container that never started has no log
            return f"its log cannot be read ({_message(exc)})"
        return f"its log ends with:\n{log}"


def _waiting(pod: Any) -> str:
    reasons = [each.message for each in pod.status.conditions or [] if each.status != "True" and each.message]
    for each in pod.status.container_statuses or []:
        state = each.state.waiting or each.state.terminated if each.state else None
        if state is not None:
            reasons.append(": ".join(word for word in (state.reason, state.message) if word))
    return f" ({'; '.join(reasons)})" if reasons else ""


def _message(exc: Any) -> str:
    try:
        return str(json.loads(exc.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(exc.body or exc.reason)
