"""What the user wants trained: the job, its optimizer and its learning rate, as values that can travel.

Needs no torch to be imported. May import only the vocabulary (types, errors, units).
"""
