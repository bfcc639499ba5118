"""Real servers, Ray heads and steps that tests and benchmarks start, kill and watch.

Not part of the product. What only tests need is in `tests/support`.
"""
