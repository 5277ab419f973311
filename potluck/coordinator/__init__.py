"""The process that holds plan, data order and ledger: terms, rounds, and one run from its start to its end.

May import everything below; never the device's house, nor simulation.
"""
