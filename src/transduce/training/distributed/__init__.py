"""Distributed training: the processes (ranks) of a run, their collectives, and FSDP."""
