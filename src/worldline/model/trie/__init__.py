"""A world's rows under one hash: a trie whose bytes depend on the rows alone. Pure; `nodes.py` has the form."""
