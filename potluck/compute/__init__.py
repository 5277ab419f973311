"""Runs a piece of a program: operators and their kernels, forward, backward, late weights, optimizer step.

Knows no process, message or plan. May import `program`, the job's optimizer values and the vocabulary.
"""
