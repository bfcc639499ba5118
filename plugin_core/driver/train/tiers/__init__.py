"""Checkpoints on the workers' nodes, besides those on storage (`checkpoint_config.local_tier`).

In each worker, a `Keeper` copies every checkpoint to the `Disk` of its node, in the background to that of a peer node,
and some of them to storage. The driver's `TierCallback` is told, and its `Record`s say which checkpoints all ranks
have, and where. The records are in the key-value store of Ray's head, so the next driver knows them too. If the head is
lost, so are they.
"""
