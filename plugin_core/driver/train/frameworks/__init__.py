"""One module for each framework: it builds the framework's Ray trainer."""
