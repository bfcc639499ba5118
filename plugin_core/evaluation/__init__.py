"""The built-in evaluation: what an actor counts of its rows, and how the counts of all become exact metrics."""
