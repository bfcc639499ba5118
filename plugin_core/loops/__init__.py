"""Small helpers for train loops, where Ray Train's are missing or unsafe. They run in the workers, alongside Ray Train's
own utilities (`prepare_model`, `RayDDPStrategy`, …). What the driver does around a loop is in `driver`.

    torch         save and restore the state of a PyTorch loop in a checkpoint
    sharded       the same with one shard per rank, for FSDP and similar; restored by any number of ranks
    transformers  a Hugging Face Trainer that reports, checkpoints and resumes
    progress      tells the hang detection that a loop that reports rarely goes on
    rows          data that a resumed training reads on from the row where it was
    upload        reporting, used by all of them
"""
