"""Bytes between devices: frames, links, the control channel, and every message that crosses it.

The only room that opens sockets. May import the job's optimizer values, which networks are plain, and the vocabulary.
"""
