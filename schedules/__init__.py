"""What a schedule is: ops, placements, problems, orders, their times, families and files.

No search (``bubbleproof.solver``) and no verdicts (``bubbleproof.verify``) live here.
"""
