"""Storage: locations on a local disk, S3, GCS, Azure or any fsspec filesystem, and reading and writing them.

Nothing here knows about runs or steps.
"""
