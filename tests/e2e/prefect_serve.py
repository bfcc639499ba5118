"""A runner with deployments of the flows that train long: `python -m tests.e2e.prefect_serve NAME`."""

import sys

from prefect import serve

from tests.e2e import prefect_flows

if __name__ == "__main__":
    serve(*(flow.to_deployment(sys.argv[1]) for flow in prefect_flows.SERVED), limit=10)
