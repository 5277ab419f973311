"""The torch side of what travels and rests: parcels, states and vectors over links, snapshots, checkpoints.

May import `compute`, `program` and `wire`; decides nothing.
"""
