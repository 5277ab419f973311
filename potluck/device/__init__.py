"""The process on a device: joins, obeys orders, holds a stage or trains on data of its own.

May import everything below; never the coordinator's house, nor simulation.
"""
