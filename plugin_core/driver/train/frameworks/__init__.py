"""One module per framework, which builds the framework's Ray trainer."""
