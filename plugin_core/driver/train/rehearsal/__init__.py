"""What a worker of a rehearsal observes (see `supervisor.rehearse`). Not here: how two of them compare (`runs.rehearsal`)."""
