"""Small helpers for train loops, where Ray Train's own are missing or unsafe. They run in the workers; Ray Train's own
utilities (`prepare_model`, `RayDDPStrategy`, …) stay what they are.

    torch         the state of a PyTorch loop in a checkpoint, and back
    sharded       the same in parts, one a rank, for FSDP and the like; restored by any number of ranks
    transformers  a Hugging Face Trainer that reports, checkpoints and resumes
    upload        what they all report with
"""
