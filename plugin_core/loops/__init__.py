"""Small helpers for train loops, where Ray Train's are missing or unsafe. They run in the workers, alongside Ray Train's
own utilities (`prepare_model`, `RayDDPStrategy`, …). What the driver does around a loop is in `driver`.

    torch         save and restore the state of a PyTorch loop in a checkpoint
    sharded       the same with one shard per rank, for FSDP and similar; any number of ranks can restore it
    transformers  a Hugging Face Trainer that reports, checkpoints and resumes
    progress      tells hang detection that a loop that rarely reports is still running
    rows          data that a resumed training continues to read at the row where it stopped
    upload        reporting, used by all of them
"""
