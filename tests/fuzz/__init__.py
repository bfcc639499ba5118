"""Wrong input of every kind, thrown at every way in: `make fuzz`, and a short part in `make test`."""
