"""Clusters that run steps: existing Ray clusters, the embedded local head, KubeRay and a fake for tests; the Ray Jobs API.

Decisions about jobs are made in `supervisor`.
"""
