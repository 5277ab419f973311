"""The machine under a device: its kind, its pace, its throttle, its faults on order.

May import `wire` and the vocabulary.
"""
