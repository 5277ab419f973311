"""What a message weighs, and in which form tensors cross a cut: the codecs. A file for each; `raw` changes nothing.

Needs no torch to be imported: the planner asks only for bytes and seconds. May import only the vocabulary.
"""
