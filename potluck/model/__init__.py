"""From an nn.Module to a program: traced with torch.export, rewritten, probed, with its facts and its first state.

May import `program`, and `compute` to run what it probes.
"""
