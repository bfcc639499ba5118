"""What a worker of a rehearsal observes (see `supervisor.rehearse`). Not here: how two compare (`runs.rehearsal`)."""
