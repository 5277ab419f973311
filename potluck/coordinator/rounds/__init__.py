"""Round after round: feeding, collecting, committing, evaluating, checkpoints, and the next plan.

May import `control`, `recover`, `plan`, `tensors`, `wire`, and its neighbours of the fleet and the samples.
"""
