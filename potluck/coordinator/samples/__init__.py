"""From the job's data to tensors on their way: loading, collating, and the job made ready and checked.

May import `model`, `datasets` and the job.
"""
