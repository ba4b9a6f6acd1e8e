"""Every rule of a valid schedule, restated from its definition in SPEC.md.

Reads the data types of ``bubbleproof.schedules`` and never the code that it judges.
"""
