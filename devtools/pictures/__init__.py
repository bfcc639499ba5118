"""The pictures of the docs, made from real runs: terminals, and the pages of Airflow, Prefect and MLflow in a browser."""
