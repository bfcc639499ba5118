"""Wrong input of every kind, at every entry point: `make fuzz`, and a short part in `make test`."""
