"""Storage: locations on a local disk, S3, GCS, Azure or any fsspec filesystem, and what is read from and written to them.

Nothing here knows about runs or steps.
"""
