"""What a worker observes in a rehearsal (see `supervisor.rehearse`). How two compare is in `runs.rehearsal`."""
