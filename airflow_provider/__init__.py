"""Ray steps in Airflow: operators, decorators, a hook with its connection, triggers, links and assets.

Import operators from `airflow_provider.operators`. What a step does is in `plugin_core`, and used through its `engine`.
"""
