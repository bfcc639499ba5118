"""Checkpoints on the workers' nodes, beside those on storage (`checkpoint_config.local_tier`).

In each worker a `Keeper` copies every checkpoint to a `Disk` of its node, in the background to that of a peer node, and
some of them to storage. The driver's `TierCallback` hears of it, and knows by its `Record`s which checkpoints all ranks
have, and where. They are in the key-value store of Ray's head, so the next driver knows them too. A lost head takes them
with it.
"""
