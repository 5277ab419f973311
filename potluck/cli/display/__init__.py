"""What a person sees: progress, lanes, plans and tables as text. Records in, lines out.

May import `metrics`, `plan`, `simulate` for what they show, and rich.
"""
