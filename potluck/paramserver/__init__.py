"""Training around a parameter server, as decisions: when to push, who waits, what is applied exactly once. Pure.

Only the server itself touches tensors. May import `tensors` and the vocabulary.
"""
