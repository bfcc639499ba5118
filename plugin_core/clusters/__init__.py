"""Where a step runs: existing Ray clusters, the embedded local head, KubeRay, and a fake for tests; the Ray Jobs API.

Deciding what to do with a job is up to `supervisor`.
"""
