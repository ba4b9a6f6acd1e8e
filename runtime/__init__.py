"""Schedules run on torch.distributed.pipelining; the extra ``torch`` is needed."""
